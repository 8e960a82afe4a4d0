// Which words of two rendered texts are only in one of them, marked in place.
"use strict";

const MOST = 3_000_000;  // cells of the table; beyond, the texts are too long to compare word by word

function words(box) {
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentNode.matches(".language, .quiet")) continue;  // our words: the name of a language, "(empty)"
    for (const word of node.data.matchAll(/[\p{L}\p{N}\p{M}'’_-]+|[^\s\p{L}\p{N}]/gu)) {
      found.push({ node, start: word.index, end: word.index + word[0].length, text: word[0] });
    }
  }
  return found;
}

// For each word of `one` and of `two`: is it part of a longest common subsequence? Null where the texts are too long.
export function common(one, two) {
  let head = 0;
  while (head < one.length && head < two.length && one[head] === two[head]) head += 1;
  let tail = 0;
  while (tail < one.length - head && tail < two.length - head && one[one.length - 1 - tail] === two[two.length - 1 - tail]) tail += 1;
  const rows = one.length - head - tail;
  const columns = two.length - head - tail;
  if ((rows + 1) * (columns + 1) > MOST) return null;
  const width = columns + 1;
  const length = new Uint16Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i -= 1) {
    for (let j = columns - 1; j >= 0; j -= 1) {
      length[i * width + j] = one[head + i] === two[head + j]
        ? length[(i + 1) * width + j + 1] + 1
        : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  const inOne = one.map((_, k) => k < head || k >= one.length - tail);
  const inTwo = two.map((_, k) => k < head || k >= two.length - tail);
  for (let i = 0, j = 0; i < rows && j < columns;) {
    if (one[head + i] === two[head + j]) { inOne[head + i] = inTwo[head + j] = true; i += 1; j += 1; }
    else if (length[(i + 1) * width + j] >= length[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return [inOne, inTwo];
}

// From the last word to the first, so that splitting a text node leaves the places of earlier words as they are.
function markWords(found, kept) {
  for (let k = found.length - 1; k >= 0; k -= 1) {
    if (kept[k]) continue;
    let first = k;
    const { node, end } = found[k];
    while (first > 0 && !kept[first - 1] && found[first - 1].node === node) first -= 1;
    node.splitText(end);
    const differing = node.splitText(found[first].start);
    const mark = document.createElement("mark");
    differing.replaceWith(mark);
    mark.append(differing);
    k = first;
  }
}

// Marks what differs in both boxes; false where they are too long.
export function markDifferences(one, two) {
  const [left, right] = [words(one), words(two)];
  const kept = common(left.map((word) => word.text), right.map((word) => word.text));
  if (!kept) return false;
  markWords(left, kept[0]);
  markWords(right, kept[1]);
  return true;
}
