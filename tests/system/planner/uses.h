// SPDX-License-Identifier: Apache-2.0
// Reads a recorded trace (trace.py has the format).
//
// Thread-safety: a pure function. Errors: exits the process with a message.
#ifndef STRATALLOC_TESTS_SYSTEM_PLANNER_USES_H_
#define STRATALLOC_TESTS_SYSTEM_PLANNER_USES_H_

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace stratalloc::planner {

using PageNumber = std::uint32_t;

struct PageAccess {
  PageNumber page = 0;
  char kind = 'r';  // reads, writes, or makes a new page ('n')
};

struct Event {
  char kind = 'o';  // an operator, 'f': pages are freed, 's': scope, 'c': cycle
  std::uint64_t value = 0;  // nanoseconds of an operator, step of a scope event
  std::vector<PageAccess> pages;
};

struct Trace {
  std::string name;
  std::size_t most_live = 0;  // pages at a time
  PageNumber pages = 0;       // all of them have smaller numbers
  std::size_t cycles = 0;
  std::vector<Event> events;
};

Trace ReadTrace(std::istream& in);

}  // namespace stratalloc::planner

#endif  // STRATALLOC_TESTS_SYSTEM_PLANNER_USES_H_
