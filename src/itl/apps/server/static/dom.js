// Builds elements from text only: names and messages never become HTML.

export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name in node && typeof value !== "string") node[name] = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// Makes the children of `parent` match `items`. Elements with the same key are kept, so focus is not lost.
export function sync(parent, items, key, create, update = () => {}) {
  const present = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let previous = null;
  for (const item of items) {
    const name = String(key(item));
    let node = present.get(name);
    if (!node) {
      node = create(item);
      node.dataset.key = name;
    }
    present.delete(name);
    update(node, item);
    const next = previous ? previous.nextSibling : parent.firstChild;
    if (next !== node) parent.insertBefore(node, next);
    previous = node;
  }
  for (const node of present.values()) node.remove();
}

export function choose(select, options, value) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.dataset.options = wanted;
    select.replaceChildren(...options.map((one) => h("option", { value: one.value }, one.label)));
  }
  if (value !== undefined && select.value !== value) select.value = value;
}

export const plural = (count, word) =>
  `${count.toLocaleString("en")} ${count === 1 ? word : word.endsWith("s") ? `${word}es` : `${word}s`}`;
export const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 0 : 1)} %`;
export const points = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(1)} %`);

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export function say(text, kind = "info") {
  const box = h("p", { class: `message ${kind}` }, h("span", {}, text),
    h("button", { type: "button", class: "quiet", "aria-label": "Close this message", onclick: () => box.remove() },
      "×"));
  const messages = document.getElementById("messages");
  messages.append(box);
  while (messages.children.length > 3) messages.firstChild.remove();
  if (kind === "info") setTimeout(() => box.remove(), 6000);
}

// Runs an action and reports its error; the button is disabled meanwhile.
export async function run(action, button = null) {
  if (button) button.disabled = true;
  try {
    return await action();
  } catch (error) {
    say(error.message, "error");
    return null;
  } finally {
    if (button) button.disabled = false;
  }
}

// Asks a question in a dialog; resolves to the text of its field, to true, or to null if it was closed.
export function ask({ title, text, field = null, value = "", button, danger = false }) {
  return new Promise((resolve) => {
    const input = field === null ? null
      : h("input", { type: "text", value, maxlength: "100", required: true, autocomplete: "off" });
    const label = input ? h("label", { class: "field" }, h("span", {}, field), input) : null;
    const dialog = h("dialog", { "aria-label": title, onclose: () => {
      const accepted = dialog.returnValue === "ok";
      resolve(accepted ? (input ? input.value.trim() : true) : null);
      dialog.remove();
    } },
    h("form", { method: "dialog" }, h("h2", {}, title), text ? h("p", {}, text) : null, label,
      h("div", { class: "row end" },
        h("button", { class: danger ? "danger" : "primary", value: "ok" }, button),
        h("button", { class: "quiet", value: "", formnovalidate: "" }, "Cancel"))));
    document.body.append(dialog);
    dialog.showModal();
    if (input) input.select();
  });
}
