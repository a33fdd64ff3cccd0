// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/conformance/checks.h"

#include <cstdio>
#include <string>
#include <vector>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/runner.h"

namespace conformance {

std::string Text(cudaError_t error) {
  const char* name = api.cudaGetErrorName(error);
  return std::string(name) + " (" + std::to_string(static_cast<int>(error)) +
         ")";
}

std::string Text(CUresult error) {
  const char* name = nullptr;
  if (api.cuGetErrorName(error, &name) != CUDA_SUCCESS) name = "no error";
  return std::string(name) + " (" + std::to_string(static_cast<int>(error)) +
         ")";
}

std::string Text(const char* text) {
  return text == nullptr ? "null" : std::string("\"") + text + '"';
}

std::string Text(const void* pointer) {
  char text[24];
  std::snprintf(text, sizeof(text), "%p", pointer);
  return text;
}

std::string Text(bool value) { return value ? "true" : "false"; }

void Note(const char* name, bool verified, bool ok, const std::string& expected,
          const std::string& actual) {
  WriteLine(std::string(verified ? "documented" : "believed") + '\t' +
            (ok ? "ok" : "differs") + '\t' + name + '\t' + expected + '\t' +
            actual);
}

void NoteKnown(const char* name, const std::string& expected,
               const std::string& actual) {
  WriteLine(std::string("believed\tknown\t") + name + '\t' + expected + '\t' +
            actual);
}

void Skip(const char* name, const char* why) {
  WriteLine(std::string("skip\t-\t") + name + "\t-\t" + why);
}

std::vector<Case>& Cases() {
  static auto& cases = *new std::vector<Case>;
  return cases;
}

}  // namespace conformance
