/** What the modules of the page need of a browser, and a server whose answers a test decides. */

const encoder = new TextEncoder();

/** One request to the server, and its answer. */
export class Connection {
  readonly url: string;
  readonly headers: Record<string, string>;
  isAborted = false;
  private readonly answer: (response: Response) => void;
  private readonly reject: (error: unknown) => void;
  private stream: ReadableStreamDefaultController<Uint8Array> | null = null;

  constructor(url: string, options: RequestInit, answer: (response: Response) => void, reject: (error: unknown) => void) {
    this.url = url;
    this.headers = { ...(options.headers as Record<string, string>) };
    this.answer = answer;
    this.reject = reject;
    options.signal?.addEventListener("abort", () => {
      this.isAborted = true;
      const error = new DOMException("aborted", "AbortError");
      this.reject(error);
      this.close((stream) => stream.error(error));
    });
  }

  send(text: string): void {
    this.sendBytes(encoder.encode(text));
  }

  sendBytes(bytes: Uint8Array): void {
    this.begin();
    this.close((stream) => stream.enqueue(bytes), false);
  }

  end(): void {
    this.begin();
    this.close((stream) => stream.close());
  }

  fail(): void {
    this.reject(new TypeError("Failed to fetch"));
  }

  refuse(status: number, body: unknown = { error: { type: "refused", message: `refused with ${status}` } }): void {
    this.answer(new Response(JSON.stringify(body), { status }));
  }

  reply(body: unknown): void {
    this.refuse(200, body);
  }

  private begin(): void {
    if (this.stream !== null || this.isAborted) return;
    const body = new ReadableStream<Uint8Array>({ start: (stream) => void (this.stream = stream) });
    this.answer(new Response(body, { status: 200 }));
  }

  private close(act: (stream: ReadableStreamDefaultController<Uint8Array>) => void, isLast = true): void {
    const { stream } = this;
    if (stream === null || (this.isAborted && !isLast)) return;
    try {
      act(stream);
    } catch {
      // it is closed already
    }
  }
}

/** The requests of the page, in their order. */
export class FakeServer {
  asked = 0;
  private readonly open: Connection[] = [];
  private readonly waiting: ((connection: Connection) => void)[] = [];
  private readonly isMeant: (url: string) => boolean;

  constructor(isMeant: (url: string) => boolean) {
    this.isMeant = isMeant;
  }

  readonly fetch = (url: string, options: RequestInit = {}): Promise<Response> =>
    new Promise((answer, reject) => {
      const connection = new Connection(url, options, answer, reject);
      if (!this.isMeant(url)) return connection.refuse(500);
      this.asked++;
      const resolve = this.waiting.shift();
      if (resolve === undefined) this.open.push(connection);
      else resolve(connection);
    });

  /** The next request, once it is there. */
  next(): Promise<Connection> {
    const first = this.open.shift();
    return first === undefined ? new Promise((resolve) => this.waiting.push(resolve)) : Promise.resolve(first);
  }
}

/** Let all that needs no timer happen. */
export async function settle(): Promise<void> {
  for (let round = 0; round < 5; round++) await new Promise<void>((resolve) => setImmediate(resolve));
}

const page = Object.assign(new EventTarget(), { visibilityState: "visible" });

/** Give the modules a page and a server. Requests that are not meant are answered with 500. */
export function startPage(isMeant: (url: string) => boolean = () => true): FakeServer {
  const server = new FakeServer(isMeant);
  Object.assign(globalThis, {
    document: page,
    fetch: server.fetch,
    addEventListener: () => undefined,
    removeEventListener: () => undefined,
    requestAnimationFrame: (run: () => void) => setImmediate(run),
    cancelAnimationFrame: (frame: NodeJS.Immediate) => clearImmediate(frame),
  });
  return server;
}

export function showPage(isVisible = true): void {
  page.visibilityState = isVisible ? "visible" : "hidden";
  page.dispatchEvent(new Event("visibilitychange"));
}
