// SPDX-License-Identifier: Apache-2.0
//
// checks.h: how a case says what it expects. A check is one fact of CUDA's
// behaviour: its name, what it should be and what it was. Each is a line of
// output at once, so that a crash loses nothing.
//
// Two kinds, counted apart:
//   Documented  CUDA's documentation says so, or every program relies on it
//               (PyTorch would break otherwise).
//   Believed    the documentation is silent, or a driver does not follow it;
//               what the driver is thought to do. "unverified" in the output.
// A believed answer may have a second, known one beside it: Stricter().
//
// Names are words with underscores, unique within a case. Called from the
// case's own thread.

#ifndef STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_CHECKS_H_
#define STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_CHECKS_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

namespace conformance {

// How values are written: errors by their name.
std::string Text(cudaError_t error);
std::string Text(CUresult error);
std::string Text(const char* text);
std::string Text(const void* pointer);
std::string Text(bool value);
template <typename T>
requires(std::is_integral_v<T> || std::is_enum_v<T>) std::string Text(T value) {
  return std::to_string(static_cast<long long>(value));
}

// Writes the line. `verified`: documented.
void Note(const char* name, bool verified, bool ok, const std::string& expected,
          const std::string& actual);
// The line of a believed check whose answer is a driver's known one.
void NoteKnown(const char* name, const std::string& expected,
               const std::string& actual);

template <typename T>
bool Documented(const char* name, const T& expected, const T& actual) {
  const bool ok = expected == actual;
  Note(name, true, ok, Text(expected), Text(actual));
  return ok;
}
template <typename T>
bool Believed(const char* name, const T& expected, const T& actual) {
  const bool ok = expected == actual;
  Note(name, false, ok, Text(expected), Text(actual));
  return ok;
}

// A driver is known to answer `driver`. The simulated device is stricter, so
// that a mistake of the product is seen: with --strict only `expected` holds.
template <typename T>
void Stricter(const char* name, const T& expected, const T& driver,
              const T& actual) {
  if (actual == driver) {
    NoteKnown(name, Text(expected), Text(actual));
  } else {
    Believed(name, expected, actual);
  }
}

// The documentation gives more than one possible answer.
template <typename T>
bool DocumentedOneOf(const char* name, std::initializer_list<T> expected,
                     const T& actual) {
  bool ok = false;
  std::string text;
  for (const T& each : expected) {
    ok |= each == actual;
    text += (text.empty() ? "" : " or ") + Text(each);
  }
  Note(name, true, ok, text, Text(actual));
  return ok;
}

// The documentation forbids it without saying with which error: the refusal is
// documented, the error believed.
template <typename T>
void Refused(const char* name, const T& expected, const T& actual) {
  Note(name, true, static_cast<int>(actual) != 0, "an error", Text(actual));
  Believed((std::string(name) + "_error").c_str(), expected, actual);
}

// True or not.
inline bool Holds(const char* name, bool fact) {
  return Documented(name, true, fact);
}
inline bool BelievedTo(const char* name, bool fact) {
  return Believed(name, true, fact);
}

// The machine cannot show this (one device only, ...). Counted and named.
void Skip(const char* name, const char* why);

struct Case {
  std::string area;
  std::string name;
  bool own_process;  // breaks or needs a fresh context
  std::function<void()> run;
};
std::vector<Case>& Cases();

struct Register {
  Register(const char* area, const char* name, bool own_process,
           void (*run)()) {
    Cases().push_back({area, name, own_process, run});
  }
};

}  // namespace conformance

// A case shares its process with the others of its area; one in its own
// process may break the device, or look at it before anything was called.
#define CONFORMANCE_CASE(area, name, own)                        \
  static void area##_##name();                                   \
  static const ::conformance::Register register_##area##_##name( \
      #area, #name, own, &area##_##name);                        \
  static void area##_##name()
#define CASE(area, name) CONFORMANCE_CASE(area, name, false)
#define CASE_IN_OWN_PROCESS(area, name) CONFORMANCE_CASE(area, name, true)

#endif  // STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_CHECKS_H_
