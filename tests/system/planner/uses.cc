// SPDX-License-Identifier: Apache-2.0
#include "tests/system/planner/uses.h"

#include <algorithm>
#include <istream>
#include <sstream>

#include "allocator/base/check.h"

namespace stratalloc::planner {
namespace {

void AddRuns(const std::string& runs, char kind, Event& event) {
  std::istringstream in(runs);
  for (std::string run; std::getline(in, run, ',');) {
    const std::size_t dash = run.find('-');
    const PageNumber first = std::stoul(run.substr(0, dash));
    const PageNumber last =
        dash == std::string::npos ? first : std::stoul(run.substr(dash + 1));
    for (PageNumber page = first; page <= last; ++page) {
      event.pages.push_back({page, kind});
    }
  }
}

}  // namespace

Trace ReadTrace(std::istream& in) {
  Trace trace;
  for (std::string line; std::getline(in, line);) {
    std::istringstream parts(line);
    Event event;
    parts >> event.kind;
    std::string part;
    switch (event.kind) {
      case 'b':
        parts >> trace.name >> trace.most_live;
        continue;
      case 'o':
        parts >> event.value;
        while (parts >> part) {
          const char kind = part[0];
          parts >> part;
          AddRuns(part, kind, event);
        }
        break;
      case 'f':
        parts >> part;
        AddRuns(part, 'f', event);
        break;
      case 's':
        parts >> event.value;
        break;
      case 'c':
        ++trace.cycles;
        break;
      default:
        STRATALLOC_CHECK(false, "not a line of a trace: " + line);
    }
    for (const PageAccess& access : event.pages) {
      trace.pages = std::max(trace.pages, access.page + 1);
    }
    trace.events.push_back(std::move(event));
  }
  return trace;
}

}  // namespace stratalloc::planner
