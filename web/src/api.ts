/** Requests to the server. Every error is an `ApiError` with the server's own sentence. */

import { noteLoginEnded } from "./store/login.ts";

export class ApiError extends Error {
  /** 0 means that the server could not be reached. */
  readonly status: number;
  readonly kind: string;

  constructor(status: number, message: string, kind = "") {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

type Query = Record<string, string | number | boolean | null | undefined>;

export function buildUrl(path: string, query: Query = {}): string {
  const used = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(used.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

/** The path of a session's resource. Call ids may have slashes: they go in as they are. */
export function sessionPath(id: string, rest = ""): string {
  return `/v1/sessions/${encodeURIComponent(id)}${rest}`;
}

export async function request(method: string, path: string, body?: unknown, headers: HeadersInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      credentials: "same-origin",
      headers: body === undefined ? headers : { "content-type": "application/json", ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  } catch {
    throw new ApiError(0, "No connection to the server.");
  }
  if (!response.ok) throw await readError(response);
  return response;
}

export async function readError(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  if (response.status === 401) noteLoginEnded();
  try {
    const { error } = JSON.parse(text) as { error: { type: string; message: string; hint?: string } };
    return new ApiError(response.status, error.hint ? `${error.message} (${error.hint})` : error.message, error.type);
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || response.statusText || `HTTP ${response.status}`);
  }
}

async function call<T>(method: string, path: string, body?: unknown, headers?: HeadersInit): Promise<T> {
  const response = await request(method, path, body, headers);
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

export const api = {
  get: <T>(path: string, query?: Query): Promise<T> => call<T>("GET", buildUrl(path, query)),
  post: <T = void>(path: string, body: unknown = {}, headers?: HeadersInit): Promise<T> => call<T>("POST", path, body, headers),
  put: <T = void>(path: string, body: unknown): Promise<T> => call<T>("PUT", path, body),
  patch: <T = void>(path: string, body: unknown): Promise<T> => call<T>("PATCH", path, body),
  delete: <T = void>(path: string): Promise<T> => call<T>("DELETE", path),
};
