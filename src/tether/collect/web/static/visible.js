// Text of strangers to text nodes. What is invisible or turns the direction of writing is shown by its code point.
"use strict";

const NAMES = {
  0x00: "NULL", 0x07: "BELL", 0x08: "BACKSPACE", 0x0d: "CARRIAGE RETURN", 0x1b: "ESCAPE", 0xad: "SOFT HYPHEN", 0x61c: "ARABIC LETTER MARK",
  0x200b: "ZERO WIDTH SPACE", 0x200c: "ZERO WIDTH NON-JOINER", 0x200d: "ZERO WIDTH JOINER", 0x200e: "LEFT-TO-RIGHT MARK",
  0x200f: "RIGHT-TO-LEFT MARK", 0x2028: "LINE SEPARATOR", 0x2029: "PARAGRAPH SEPARATOR", 0x202a: "LEFT-TO-RIGHT EMBEDDING",
  0x202b: "RIGHT-TO-LEFT EMBEDDING", 0x202c: "POP DIRECTIONAL FORMATTING", 0x202d: "LEFT-TO-RIGHT OVERRIDE", 0x202e: "RIGHT-TO-LEFT OVERRIDE",
  0x2060: "WORD JOINER", 0x2066: "LEFT-TO-RIGHT ISOLATE", 0x2067: "RIGHT-TO-LEFT ISOLATE", 0x2068: "FIRST STRONG ISOLATE",
  0x2069: "POP DIRECTIONAL ISOLATE", 0xfeff: "BYTE ORDER MARK",
};

// Controls but tab and line feed; format characters (Cf: bidi, zero width, tags); fillers; variation selectors; halves of a pair.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]|\p{Cf}|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u2028\u2029\u2800\u3164\uffa0\ufe00-\ufe0f\u{e0100}-\u{e01ef}]|\p{Cs}/gu;
const PICTURE = /[\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f]$/u;

// Joiners and selectors that belong to an emoji, as in a family or a red heart, stay what they are.
function belongsToPicture(text, at, char) {
  const before = PICTURE.test(text.slice(Math.max(0, at - 2), at));
  if (char === "\ufe0f") return before || /[0-9#*\u2000-\u3300]$/u.test(text.slice(0, at).slice(-1));
  return char === "\u200d" && before && /^\p{Extended_Pictographic}/u.test(text.slice(at + 1, at + 3));
}

function mark(char) {
  const code = char.codePointAt(0);
  const label = "U+" + code.toString(16).toUpperCase().padStart(4, "0");
  const node = document.createElement("span");
  node.className = "unseen";
  node.textContent = label;
  node.title = NAMES[code] || "a character that is not seen";
  return node;
}

// A browser lays out one word of a million letters in minutes. A longer one than this is cut into boxes, and those that are off the screen cost
// nothing (text.css). Scripts that are written without spaces can be broken anywhere and need no cutting.
const LONGEST = 1000;
const WORD = /[^\s\p{sc=Hani}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}\p{sc=Laoo}\p{sc=Khmr}\p{sc=Mymr}\p{sc=Tibt}]+/gu;
const PIECE = new RegExp(`[^]{1,${LONGEST}}(?:\\u200d[^]|\\p{M}|\\p{Emoji_Modifier}){0,100}`, "gu");  // accents stay with their letter

function appendSeen(parent, text) {
  let done = 0;
  for (const { 0: word, index } of text.length > LONGEST ? text.matchAll(WORD) : []) {
    if (word.length <= LONGEST) continue;
    if (index > done) parent.append(text.slice(done, index));
    for (const piece of word.match(PIECE)) {
      const node = document.createElement("span");
      node.className = "piece";
      node.textContent = piece;
      parent.append(node);
    }
    done = index + word.length;
  }
  if (done < text.length) parent.append(text.slice(done));
}

// Appends `text` to `parent`: text nodes, and a mark for each character that is not seen.
export function appendText(parent, text) {
  let done = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (belongsToPicture(text, found.index, found[0])) continue;
    if (found[0] === "\r" && text[found.index + 1] === "\n") {
      appendSeen(parent, text.slice(done, found.index));  // a line end of Windows is a line end
    } else {
      appendSeen(parent, text.slice(done, found.index));
      parent.append(mark(found[0]));
    }
    done = found.index + found[0].length;
  }
  appendSeen(parent, text.slice(done));
}
