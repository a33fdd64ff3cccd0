// SPDX-License-Identifier: Apache-2.0
// A scope's name as a part of a line of text: an error's message, a line of the
// log. Names are the program's and may hold anything; what is shown of one is a
// single line that a terminal takes as text, and not longer than a line of
// text: of a longer name its ends.
//
// Thread-safety: all; scope_table.h's lock inside (leaf).
// Failure: none; bytes that are no UTF-8 are shown as "?" each.
#ifndef STRATALLOC_ACCOUNTING_SCOPE_TEXT_H_
#define STRATALLOC_ACCOUNTING_SCOPE_TEXT_H_

#include <string>
#include <string_view>

#include "allocator/base/ids.h"

namespace stratalloc {

// Bytes of text at most, whatever the name.
inline constexpr int kLongestScopeText = 100;

std::string ScopeText(ScopeId scope);
// The same of any name: what controls a terminal or the direction of text is
// "?", and what is left away in the middle is "...".
std::string OneLine(std::string_view name);
// All of a text of anybody's, "?" for each byte that is no UTF-8 and for 0.
std::string Utf8(std::string_view text);

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_SCOPE_TEXT_H_
