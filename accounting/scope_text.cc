// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_text.h"

#include <cstddef>
#include <cstdint>

#include "accounting/scope_table.h"

namespace stratalloc {
namespace {

struct Character {
  std::uint32_t point;
  std::size_t bytes;
};
constexpr Character kNone{0, 1};

// The character at the start of `text`, which is not empty.
Character First(std::string_view text) {
  const auto at = [&](std::size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return kNone;
  std::uint32_t point = lead & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return kNone;
    point = point << 6 | (at(i) & 0x3F);
  }
  return {point, bytes};
}

// Controls, separators of lines and paragraphs, marks of direction, surrogates.
bool IsText(std::uint32_t point) {
  if (point < 0x20 || (point >= 0x7F && point < 0xA0)) return false;
  if (point >= 0x200B && point <= 0x200F) return false;
  if (point >= 0x2028 && point <= 0x202E) return false;
  if (point >= 0x2060 && point <= 0x206F) return false;
  if (point >= 0xD800 && point <= 0xDFFF) return false;
  return point != 0x061C && point != 0xFEFF;
}

// Is it UTF-8: no surrogate, none past the last, and no longer than need be?
bool IsWhole(const Character& character) {
  constexpr std::uint32_t kLeast[] = {0, 1, 0x80, 0x800, 0x10000};
  const std::uint32_t point = character.point;
  return point >= kLeast[character.bytes] && point <= 0x10FFFF &&
         (point < 0xD800 || point > 0xDFFF);
}

bool Continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

}  // namespace

std::string OneLine(std::string_view name) {
  std::string text;
  for (std::size_t i = 0; i < name.size();) {
    const Character next = First(name.substr(i));
    if (IsText(next.point)) {
      text.append(name.substr(i, next.bytes));
    } else {
      text += '?';
    }
    i += next.bytes;
  }
  if (text.size() <= kLongestScopeText) return text;
  // The end of a path says more than its beginning.
  std::size_t begin = kLongestScopeText * 2 / 5;
  std::size_t end = text.size() - (kLongestScopeText - 3 - begin);
  while (Continues(text[begin])) --begin;
  while (Continues(text[end])) ++end;
  return text.substr(0, begin) + "..." + text.substr(end);
}

std::string Utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Character next = First(text.substr(i));
    if (IsWhole(next)) {
      valid.append(text.substr(i, next.bytes));
      i += next.bytes;
    } else {
      valid += '?';
      ++i;
    }
  }
  return valid;
}

std::string ScopeText(ScopeId scope) { return OneLine(ScopeName(scope)); }

}  // namespace stratalloc
