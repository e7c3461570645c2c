// Milliseconds from each change of the expressions, which the corner of the picture tells, to new labels on all cards.
(changes) => new Promise((done) => {
  const [video, canvas] = [document.getElementById("video"), document.createElement("canvas")];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const delays = [];
  let mark, change;
  const look = (now) => {
    context.drawImage(video, 0, 0, 8, 8, 0, 0, 1, 1);
    const white = context.getImageData(0, 0, 1, 1).data[0] > 128;
    if (mark !== undefined && mark !== white) delays.push((change = { at: now }));
    mark = white;
    const cards = [...document.querySelectorAll("#faces .face:not(.away) .face-label")];
    const label = white ? "happiness" : "neutral";
    if (change && cards.length === 3 && cards.every(({ dataset }) => dataset.label === label)) {
      change.shown ??= now - change.at;
      if (!cards.some(({ classList }) => classList.contains("uncertain"))) change.certain ??= now - change.at;
    }
    if (delays.length > changes) done(delays.slice(0, changes));
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})
