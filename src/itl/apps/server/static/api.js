// Requests to the server. Errors are thrown with the server's one-line message.

let model = null;

export const setModel = (name) => { model = name; };

export function url(path, parameters = {}) {
  const query = new URLSearchParams(parameters);
  if (model) query.set("model", model);
  const text = query.toString();
  return `/api/${path}${text ? `?${text}` : ""}`;
}

async function answer(promise) {
  let response;
  try {
    response = await promise;
  } catch {
    throw new Error("The server does not answer. Is itl serve still running?");
  }
  let body = {};
  try {
    body = await response.json();
  } catch { /* not JSON: the status is reported below */ }
  if (!response.ok) throw new Error(body.error || `The server answered ${response.status}.`);
  return body;
}

export const get = (path) => answer(fetch(url(path)));

export const post = (path, values = {}) => answer(fetch(url(path), {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values),
}));

export function send(path, files, fields = {}) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  for (const file of files) form.append("image", file, file.name || "picture.jpg");
  return answer(fetch(url(path), { method: "POST", body: form }));
}

export const picture = (id, side = 160) => url(`pictures/${id}`, { side });
