// SPDX-License-Identifier: Apache-2.0
//
// conformance [--cuda FILE] [--cudart FILE] [--area NAME]... [--without
// NAME]...
//             [--strict] [--quiet] [--json FILE]
//
// One line per check, a table at the end. Exit status: 0 when every documented
// fact holds (with --strict: every unverified one too), 1 otherwise, 2 for a
// command line or machine that cannot be used.

#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/simulator/conformance/runner.h"

int main(int count, char** words) {
  conformance::Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--strict") {
      options.strict = true;
      continue;
    }
    if (word == "--quiet") {
      options.quiet = true;
      continue;
    }
    if (i + 1 == count) {
      std::fprintf(stderr, "conformance: %s?\n", word.c_str());
      return 2;
    }
    const std::string value = words[++i];
    if (word == "--cuda") {
      options.cuda = value;
    } else if (word == "--cudart") {
      options.cudart = value;
    } else if (word == "--json") {
      options.json = value;
    } else if (word == "--area") {
      options.areas.insert(value);
    } else if (word == "--without") {
      options.without.insert(value);
    } else if (word == "--child") {
      options.child = value;
    } else if (word == "--pipe") {
      options.pipe = std::atoi(value.c_str());
    } else {
      std::fprintf(stderr, "conformance: %s?\n", word.c_str());
      return 2;
    }
  }
  if (!options.child.empty()) return conformance::RunChild(options);
  char program[PATH_MAX];
  const ssize_t length =
      readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (length <= 0) {
    std::perror("conformance: /proc/self/exe");
    return 2;
  }
  return conformance::RunAll(options, std::string(program, length));
}
