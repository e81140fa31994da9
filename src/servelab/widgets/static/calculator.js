// The KV calculator: selects and sliders above a picture. State lives in the traits; see picture.js for drawing.

function nearest(values, value) {
  let best = 0;
  values.forEach((candidate, index) => {
    if (Math.abs(candidate - value) < Math.abs(values[best] - value)) best = index;
  });
  return best;
}

function makeControl(model, control, set) {
  const { kind, trait, label, values } = control;
  const id = `sl-${trait}-${Math.random().toString(36).slice(2)}`;
  const name = make("label", { for: id }, label);
  if (kind === "select") {
    const options = values.map((value) => make("option", { value }, String(value)));
    const pick = (event) => set(trait, values[event.target.selectedIndex]);
    const select = make("select", { id, "aria-label": label, onchange: pick }, ...options);
    return { trait, element: make("div", { class: "sl-control" }, name, select), show: () => { select.value = model.get(trait); } };
  }
  const output = make("output", { for: id });
  const move = (event) => set(trait, values[Number(event.target.value)]);
  const slider = make("input", { id, type: "range", min: 0, max: values.length - 1, "aria-label": label, oninput: move });
  const show = () => {
    const text = model.get(trait).toLocaleString("en");
    slider.value = nearest(values, model.get(trait));
    slider.setAttribute("aria-valuetext", text);
    output.textContent = text;
  };
  return { trait, element: make("div", { class: "sl-control sl-wide" }, name, slider, output), show };
}

function render({ model, el }) {
  const words = model.get("words");
  const send = (message) => model.send(message);
  const set = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const controls = model.get("controls").map((control) => makeControl(model, control, set));
  const ask = make("button", { title: words.ask_title, onclick: () => send({ do: "ask" }) }, words.ask);
  const bar = make("div", { class: "sl-controls", role: "toolbar", "aria-label": model.get("title") });
  bar.append(...controls.map((control) => control.element), ask);
  const caption = make("p", { class: "sl-caption", "aria-live": "polite" });
  const panel = make("div", { class: "sl-ask", role: "status" });
  const picture = make("div", { class: "sl-picture" });
  const legend = make("ul", { class: "sl-legend" });
  const sentence = make("p", { class: "sl-sentence" });
  const root = make(
    "div",
    { class: "servelab", role: "group", "aria-label": model.get("title"), "data-lm-suppress-shortcuts": "true" },
    bar, caption, panel, picture, legend, sentence,
  );
  const showFrame = () => {
    const frame = model.get("frame");
    drawFrame(picture, frame);
    drawLegend(legend, frame);
    caption.textContent = frame.caption || "";
    sentence.replaceChildren(make("strong", {}, words.sentence), ` ${frame.sentence || ""}`);
  };
  const showQuestion = () => drawAsk(panel, model, send);
  const showControls = () => controls.forEach((control) => control.show());
  const listeners = [
    ["change:frame", showFrame],
    ["change:question", showQuestion],
    ["change:feedback", showQuestion],
    ["change:score", showQuestion],
    ...controls.map((control) => [`change:${control.trait}`, showControls]),
  ];
  for (const [name, handler] of listeners) model.on(name, handler);
  el.append(root);
  showFrame();
  showQuestion();
  showControls();
  const unwatch = watchWidth(model, picture);
  return () => {
    unwatch();
    for (const [name, handler] of listeners) model.off(name, handler);
  };
}

export default { initialize: keepListening, render };
