/** One tab speaks for all tabs of a browser. A browser opens at most six connections to a server: a stream for each tab would soon block them all. */

/** Start the shared work. What it tells reaches all tabs, and this one first. Returns a function that stops it. */
type Lead<Message> = (tell: (message: Message) => void) => () => void;

/** Share the work of one tab with all tabs. Returns a function that ends the part of this tab. */
export function shareWork<Message>(name: string, lead: Lead<Message>, take: (message: Message) => void): () => void {
  // Without locks, as on a page without HTTPS from another machine, each tab works for itself.
  if (!canShare()) return lead(take);
  const channel = new BroadcastChannel(name);
  channel.onmessage = (event: MessageEvent<Message>) => take(event.data);
  const leader = new Leader(name, () =>
    lead((message) => {
      take(message);
      channel.postMessage(message);
    }),
  );
  return () => {
    leader.stop();
    channel.close();
  };
}

export function canShare(): boolean {
  return "locks" in navigator;
}

/** Works while this tab leads. The tab on the screen takes the lead, because a browser slows down hidden tabs. */
class Leader {
  private readonly name: string;
  private readonly work: () => () => void;
  private queued = new AbortController();
  /** Stops the work and gives up the lead. Null while another tab leads. */
  private yieldLead: (() => void) | null = null;
  private isStopped = false;

  constructor(name: string, work: () => () => void) {
    this.name = name;
    this.work = work;
    document.addEventListener("visibilitychange", this.takeIfVisible);
    this.request(isVisible());
  }

  stop(): void {
    this.isStopped = true;
    document.removeEventListener("visibilitychange", this.takeIfVisible);
    this.queued.abort();
    this.yieldLead?.();
  }

  private readonly takeIfVisible = (): void => {
    if (isVisible()) this.request(true);
  };

  private request(takesOver: boolean): void {
    if (this.isStopped || this.yieldLead) return;
    this.queued.abort();
    const queued = (this.queued = new AbortController());
    const options = takesOver ? { steal: true } : { signal: queued.signal };
    navigator.locks
      .request(this.name, options, () => this.lead())
      .catch(() => {
        if (queued.signal.aborted) return;
        this.yieldLead?.(); // another tab has taken the lead
        this.request(false);
      });
  }

  private lead(): Promise<void> {
    if (this.isStopped) return Promise.resolve();
    return new Promise((release) => {
      const stopWork = this.work();
      this.yieldLead = () => {
        this.yieldLead = null;
        stopWork();
        release();
      };
    });
  }
}

function isVisible(): boolean {
  return document.visibilityState === "visible";
}
