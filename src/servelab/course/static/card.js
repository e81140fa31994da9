// Draws a card from its `view`, a plain description made in Python, and sends back what the learner does.
// It holds no words and no answers of its own: what is not yet revealed is not in `view`.

let count = 0;

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function rich(tag, attributes, html) {
  const node = element(tag, attributes);
  node.innerHTML = html;
  return node;
}

function optionField(field, id, kind) {
  const chosen = new Set([].concat(field.value ?? []));
  const options = field.options.map((option, index) => {
    const input = element("input", {
      type: kind, name: `${id}-${field.name}`, value: option.key, id: `${id}-${field.name}-${index}`,
      checked: chosen.has(option.key),
    });
    return element("label", { class: "servelab-option", for: input.id }, input, rich("span", {}, option.html));
  });
  return element("fieldset", { class: `servelab-field${field.inline ? " servelab-inline" : ""}` },
    element("legend", {}, field.label), element("div", { class: "servelab-options" }, ...options));
}

function textField(field, id, submit) {
  const name = `${id}-${field.name}`;
  const long = field.kind === "text";
  const input = long
    ? element("textarea", { id: name, rows: field.rows ?? 5, name: field.name })
    : element("input", { id: name, type: "text", inputmode: "decimal", autocomplete: "off", name: field.name,
        "aria-describedby": `${id}-message` });
  input.value = field.value ?? "";
  if (!long) input.addEventListener("keydown", (event) => { if (event.key === "Enter") submit(); });
  const unit = field.unit ? element("span", { class: "servelab-unit" }, field.unit) : null;
  return element("div", { class: "servelab-field" },
    element("label", { for: name, class: "servelab-label" }, field.label),
    element("div", { class: "servelab-entry" }, input, unit));
}

function read(form, fields) {
  const values = {};
  for (const field of fields) {
    const all = [...form.querySelectorAll("input, textarea")].filter((n) => n.name.endsWith(field.name));
    if (field.kind === "choice") values[field.name] = all.find((n) => n.checked)?.value ?? null;
    else if (field.kind === "marks") values[field.name] = all.filter((n) => n.checked).map((n) => n.value);
    else values[field.name] = all[0]?.value ?? "";
  }
  return values;
}

function draw(model, host) {
  const view = model.get("view");
  const id = `servelab-card-${++count}`;
  const hadFocus = host.contains(document.activeElement);
  const fields = view.fields ?? [];
  const buttons = view.buttons ?? [];
  const send = (action) => model.send({ action, values: read(form, fields) });
  const submit = () => { const first = buttons.find((b) => b.primary); if (first) send(first.name); };
  const form = element("div", { class: "servelab-form" }, ...fields.map((field) => {
    if (field.kind === "choice") return optionField(field, id, "radio");
    if (field.kind === "marks") return optionField(field, id, "checkbox");
    return textField(field, id, submit);
  }));
  const bar = element("div", { class: "servelab-buttons" }, ...buttons.map((button) => {
    const node = element("button", { type: "button", class: button.primary ? "servelab-primary" : "servelab-quiet" },
      button.label);
    node.addEventListener("click", () => send(button.name));
    return node;
  }));
  const message = rich("div", { id: `${id}-message`, class: `servelab-message servelab-${view.message_tone ?? "info"}`,
    role: view.message_tone === "error" ? "alert" : "status" }, view.message ?? "");
  const card = element("section", { class: `servelab-card servelab-tone-${view.tone ?? "question"}`, tabindex: "-1",
    "aria-label": view.label ?? view.eyebrow },
    view.eyebrow ? element("div", { class: "servelab-eyebrow" }, view.eyebrow) : null,
    view.body ? rich("div", { class: "servelab-body" }, view.body) : null,
    fields.length ? form : null,
    view.message ? message : null,
    buttons.length ? bar : null,
    view.footer ? rich("div", { class: "servelab-footer" }, view.footer) : null);
  host.replaceChildren(card);
  if (hadFocus) card.focus({ preventScroll: true });
}

function render({ model, el }) {
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  const keep = (event) => event.stopPropagation();
  el.addEventListener("keydown", keep);
  const redraw = () => draw(model, el);
  model.on("change:view", redraw);
  redraw();
  return () => { model.off("change:view", redraw); el.removeEventListener("keydown", keep); };
}

export default { initialize: keepListening, render };
