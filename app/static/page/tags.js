// Positions of the tags of faces: inside the picture, off mouths and other tags, hiding as little of faces as possible.

const TAG_COST = 100;
const MOUTH_COST = 100;
const LOWER_HALF_COST = 3;
const OTHER_FACE_COST = 10;
const KEPT = 0.6; // share of a tag that may lie on its own face before it moves

/** Area that two rectangles share. */
export function shared(one, other) {
  const width = Math.min(one.x + one.width, other.x + other.width) - Math.max(one.x, other.x);
  const height = Math.min(one.y + one.height, other.y + other.height) - Math.max(one.y, other.y);
  return width > 0 && height > 0 ? width * height : 0;
}

/**
 * Find a position for each tag. A tag keeps its side of the face while it hides no mouth and no other tag.
 *
 * @param {{key: number, box: object, mouth: object, width: number, height: number}[]} tags with the size of each
 * @param {object} area the rectangle that tags must stay in
 * @param {Map<number, number>} slots the positions chosen for the last frame; updated
 * @returns {object[]} one rectangle per tag, in order
 */
export function placeTags(tags, area, slots = new Map()) {
  const places = [];
  for (const tag of tags) {
    const near = nearby(tag).map((corner) => inside(corner, tag, area));
    const ranking = (slot) => 0.02 * slot * tag.width * tag.height;
    let slot = slots.get(tag.key);
    let best = near[slot];
    if (!best || blocked(best, tags, places) || shared(best, tag.box) > KEPT * tag.width * tag.height) {
      [best, slot] = cheapest(near, (place, index) => hidden(place, tag, tags, places) + ranking(index));
    }
    if (blocked(best, tags, places))
      [best] = cheapest(anywhere(tag, area), (place) => hidden(place, tag, tags, places) + far(place, tag));
    slots.set(tag.key, slot);
    places.push(best);
  }
  return places;
}

function cheapest(places, cost) {
  const costs = places.map(cost);
  const slot = costs.indexOf(Math.min(...costs));
  return [places[slot], slot];
}

/** Corners near the face, best first: above, below, beside, a row further away, on the forehead. */
function nearby({ box, width, height }) {
  const columns = [box.x, box.x + (box.width - width) / 2, box.x + box.width - width];
  const [above, below] = [box.y - height - 2, box.y + box.height + 2];
  const [right, left] = [box.x + box.width + 2, box.x - width - 2];
  const corners = [above, below].flatMap((y) => columns.map((x) => [x, y]));
  corners.push([right, box.y], [left, box.y], [right, below - height], [left, below - height]);
  corners.push(...[above - height, below + height].flatMap((y) => columns.map((x) => [x, y])), [box.x, box.y]);
  return corners;
}

function* grid({ width, height }, area) {
  for (let y = area.y; y <= area.y + area.height - height; y += height / 2) {
    for (let x = area.x; x <= area.x + area.width - width; x += width / 4) yield { x, y, width, height };
  }
}

function anywhere(tag, area) {
  const places = [...grid(tag, area)];
  return places.length ? places : [inside([tag.box.x, tag.box.y], tag, area)];
}

/** @param {number[]} corner */
function inside([x, y], { width, height }, area) {
  const limit = (value, low, room) => Math.max(low, Math.min(value, low + room));
  return { x: limit(x, area.x, area.width - width), y: limit(y, area.y, area.height - height), width, height };
}

function blocked(place, tags, placed) {
  return placed.some((other) => shared(place, other)) || tags.some(({ mouth }) => shared(place, mouth));
}

function hidden(place, tag, tags, placed) {
  let cost = 0;
  for (const other of placed) cost += TAG_COST * shared(place, other);
  for (const { key, box, mouth } of tags) {
    const lower = { ...box, y: box.y + box.height / 2, height: box.height / 2 };
    cost +=
      (key === tag.key ? 1 : OTHER_FACE_COST) * shared(place, box) +
      LOWER_HALF_COST * shared(place, lower) +
      MOUTH_COST * shared(place, mouth);
  }
  return cost;
}

function far(place, { box }) {
  return Math.hypot(place.x - box.x, place.y - box.y) * place.height * 0.1;
}
