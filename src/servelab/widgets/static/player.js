// The player: toolbar, keyboard and clock around a picture. State lives in the traits; see picture.js for drawing.

const shapes = {
  first: "M5 4h2v12H5zM17 4v12L8 10z",
  back: "M14 4v12L5 10z",
  play: "M6 3.5v13L17 10z",
  pause: "M5 4h4v12H5zM11 4h4v12h-4z",
  forward: "M6 4v12l9-6z",
  last: "M13 4h2v12h-2zM3 4v12l9-6z",
};

function iconButton(name, label, onclick) {
  const button = make("button", { class: "sl-icon", "aria-label": label, title: label, onclick });
  button.innerHTML = `<svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true"><path d="${shapes[name]}"/></svg>`;
  return button;
}

function render({ model, el }) {
  const words = model.get("words");
  const send = (message) => model.send(message);
  const set = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const advance = (by) => send({ do: "advance", by, from: model.get("tick") });
  const toggle = () => set("playing", !model.get("playing"));

  const play = iconButton("play", words.play, toggle);
  const scrub = make("input", {
    type: "range",
    min: 0,
    step: 1,
    "aria-label": words.scrub,
    oninput: (event) => set("tick", Number(event.target.value)),
  });
  const position = make("output", { class: "sl-position" });
  const speed = make(
    "select",
    { "aria-label": words.speed, onchange: (event) => set("interval_ms", Number(event.target.value)) },
    ...[["slow", 1800], ["normal", 900], ["fast", 250]].map(([name, value]) => make("option", { value }, words[name])),
  );
  speed.value = model.get("interval_ms");
  const request = make(
    "select",
    { "aria-label": words.request, onchange: (event) => set("request", event.target.value) },
    ...model.get("requests").map((id) => make("option", { value: id }, id)),
  );
  const ask = make(
    "button",
    { class: "sl-toggle", title: words.ask_title, onclick: () => set("asking", !model.get("asking")) },
    words.ask,
  );
  const next = make("button", { onclick: () => send({ do: "next_decision" }) }, words.next);
  const bar = make(
    "div",
    { class: "sl-bar", role: "toolbar", "aria-label": model.get("title") },
    iconButton("first", words.first, () => set("tick", 0)),
    iconButton("back", words.back, () => advance(-1)),
    play,
    iconButton("forward", words.forward, () => advance(1)),
    iconButton("last", words.last, () => set("tick", model.get("num_ticks") - 1)),
    scrub,
    position,
  );
  const second = make("div", { class: "sl-bar sl-second" });
  if (model.get("requests").length) second.append(make("label", {}, `${words.request} `, request));
  second.append(ask, next, make("label", { class: "sl-speed" }, `${words.speed} `, speed));
  const caption = make("p", { class: "sl-caption", "aria-live": "polite" });
  const panel = make("div", { class: "sl-ask", role: "status" });
  const picture = make("div", { class: "sl-picture" });
  const legend = make("ul", { class: "sl-legend" });
  const sentence = make("p", { class: "sl-sentence" });
  const keys = make("p", { class: "sl-keys" }, words.keys);
  const root = make(
    "div",
    { class: "servelab", tabindex: 0, role: "group", "aria-label": model.get("title"), "data-lm-suppress-shortcuts": "true" },
    bar, second, caption, panel, picture, legend, sentence, keys,
  );

  let grid = null;
  let timer = 0;
  const choose = (id) => model.get("question").pointing && send({ do: "answer", choice: id });

  const showFrame = () => {
    const frame = model.get("frame");
    const focused = grid && document.activeElement === grid.target;
    grid = drawFrame(picture, frame, choose);
    drawLegend(legend, frame);
    caption.textContent = frame.caption || "";
    sentence.replaceChildren(make("strong", {}, words.sentence), ` ${frame.sentence || ""}`);
    showQuestion();
    if (focused && grid && model.get("question").pointing) grid.target.focus();
    else if (focused) root.focus();
  };
  const showQuestion = () => {
    const inside = panel.contains(document.activeElement);
    drawAsk(panel, model, send);
    const pointing = Boolean(model.get("question").pointing);
    if (grid) grid.arm(pointing);
    if (inside) root.focus();
  };
  const askGrid = () => {
    if (grid && model.get("question").pointing && root.contains(document.activeElement)) grid.target.focus();
  };
  const showState = () => {
    const isPlaying = model.get("playing");
    play.querySelector("path").setAttribute("d", shapes[isPlaying ? "pause" : "play"]);
    play.setAttribute("aria-label", isPlaying ? words.pause : words.play);
    play.title = isPlaying ? words.pause : words.play;
    scrub.max = model.get("num_ticks") - 1;
    scrub.value = model.get("tick");
    const moment = words[`moment_${model.get("moment")}`];
    const where = words.position.replace("{step}", model.get("step") + 1).replace("{steps}", model.get("num_steps"));
    position.textContent = `${where}, ${moment}`;
    scrub.setAttribute("aria-valuetext", position.textContent);
    ask.setAttribute("aria-pressed", String(model.get("asking")));
    request.value = model.get("request");
  };
  // The next move waits for Python's answer to the last one, so that a busy kernel is not flooded.
  const clock = () => {
    clearTimeout(timer);
    if (model.get("playing")) timer = setTimeout(() => advance(1), model.get("interval_ms"));
  };
  const onKey = (event) => {
    const tag = event.target.tagName;
    if (tag === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
    const isSlider = tag === "INPUT";
    if (event.key === " " && tag !== "BUTTON") toggle();
    else if (event.key === "ArrowRight" && !isSlider) advance(1);
    else if (event.key === "ArrowLeft" && !isSlider) advance(-1);
    else if (event.key === "Home" && !isSlider) set("tick", 0);
    else if (event.key === "End" && !isSlider) set("tick", model.get("num_ticks") - 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  root.addEventListener("keydown", onKey);

  const listeners = [
    ["change:frame", showFrame],
    ["change:question", () => { showQuestion(); askGrid(); }],
    ["change:feedback change:score", showQuestion],
    ["change:tick change:step change:moment change:num_ticks change:playing change:asking change:request", showState],
    ["change:playing change:tick change:frame change:interval_ms", clock],
  ].flatMap(([names, handler]) => names.split(" ").map((name) => [name, handler]));
  for (const [name, handler] of listeners) model.on(name, handler);
  el.append(root);
  showFrame();
  showState();
  clock();
  const unwatch = watchWidth(model, picture);
  return () => {
    clearTimeout(timer);
    unwatch();
    for (const [name, handler] of listeners) model.off(name, handler);
  };
}

export default { initialize: keepListening, render };
