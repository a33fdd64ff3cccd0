// SPDX-License-Identifier: Apache-2.0
//
// runner.h: runs cases in processes of their own and gathers their lines. The
// parent never opens CUDA: each area is a child (this program again, with
// --child), and so is each case that breaks its device. A child that dies or
// hangs costs its remaining cases and is a failure by name; the others run.
//
// Lines from child to parent: kind, verdict, name, expected, actual, between
// tabs; "case NAME" before a case's lines. The verdict "known" is a driver's
// known answer to a believed check, which holds unless --strict.

#ifndef STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_RUNNER_H_
#define STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_RUNNER_H_

#include <set>
#include <string>
#include <vector>

namespace conformance {

struct Options {
  std::string cuda = "libcuda.so.1";
  std::string cudart = "libcudart.so.13";
  std::string json;               // empty: none
  std::set<std::string> areas;    // empty: all
  std::set<std::string> without;  // areas left out
  bool strict = false;            // an unverified difference fails too
  bool quiet = false;             // only what is not ok
  std::string child;  // "AREA" or "AREA.CASE": run that and say so on fd
  int pipe = -1;
};

// In a child: one line to the parent, at once.
void WriteLine(const std::string& line);

// What main() returns.
int RunChild(const Options& options);
int RunAll(const Options& options, const std::string& program);

}  // namespace conformance

#endif  // STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_RUNNER_H_
