// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_text.h"

#include <cstddef>
#include <string>

#include "accounting/scope_table.h"
#include "gtest/gtest.h"

namespace stratalloc {
namespace {

TEST(ScopeText, WhatIsTextIsShownAsItIs) {
  EXPECT_EQ(ScopeText(kRootScope), "(no scope)");
  for (const std::string name : {"Net.layers.3", "kv cache/stage 2",
                                 "<b>'\"\\%s{}", "\u00e9\u4e2d\U0001f525"}) {
    EXPECT_EQ(ScopeText(InternScope(name)), name);
  }
}

TEST(ScopeText, WhatWouldMoveACursorIsAQuestionMark) {
  EXPECT_EQ(OneLine("a\nb\r\t\x1b[31mc\x7f"), "a?b???[31mc?");
  EXPECT_EQ(OneLine("a\u0085b\u2028c\u2029d\u202ee\u2066f"), "a?b?c?d?e?f");
}

TEST(ScopeText, BytesThatAreNoTextAreOneEach) {
  EXPECT_EQ(OneLine("a\xff\xfe"), "a??");
  EXPECT_EQ(OneLine("\xc3"), "?") << "cut off";
  EXPECT_EQ(OneLine("\xe2\x28\xa1"), "?(?");
  EXPECT_EQ(OneLine("\xed\xa0\x80"), "?") << "a surrogate";
}

TEST(ScopeText, ALongNameHasItsEnds) {
  const std::string text = OneLine("first" + std::string(100000, 'x') + "last");
  EXPECT_EQ(text.size(), std::size_t{kLongestScopeText});
  EXPECT_EQ(text.substr(0, 5), "first");
  EXPECT_EQ(text.substr(text.size() - 4), "last");
  EXPECT_NE(text.find("x...x"), std::string::npos);
}

TEST(ScopeText, AllOfATextIsUtf8) {
  const std::string long_one =
      "\u00e9\u65e5\U0001f525\n" + std::string(5000, 'x');
  EXPECT_EQ(Utf8(long_one), long_one);
  EXPECT_EQ(Utf8("ab\xc3"), "ab?") << "cut off";
  EXPECT_EQ(Utf8("\xe6\x97"), "??");
  EXPECT_EQ(Utf8("\xff\xfe|"), "??|");
  EXPECT_EQ(Utf8("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(Utf8("\xe0\x80\xaf"), "???") << "longer than need be";
  EXPECT_EQ(Utf8("\xf4\x90\x80\x80"), "????") << "past the last";
  EXPECT_EQ(Utf8(std::string("a\0b", 3)), "a?b");
}

// Whatever is left away: no character is cut.
TEST(ScopeText, CharactersStayWhole) {
  for (int before = 0; before < 4; ++before) {
    std::string name(static_cast<std::size_t>(before), 'x');
    for (int i = 0; i < 100; ++i) name += "\U0001f525";
    const std::string text = OneLine(name);
    EXPECT_LE(text.size(), std::size_t{kLongestScopeText});
    EXPECT_EQ(OneLine(text), text) << "all of it is text";
    EXPECT_EQ(text.find('?'), std::string::npos);
  }
}

}  // namespace
}  // namespace stratalloc
