// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/profile.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <type_traits>
#include <variant>

#include "tests/simulator/cudasim/faults.h"

namespace cudasim {
namespace {

using Json = nlohmann::ordered_json;

bool IsPositive(const std::string& key) {
  // 0: the directions of the bus are independent.
  if (key == "pcie_both_gb_per_s") return false;
  // A card without bandwidth or memory would never finish or start.
  const auto ends = [&](const char* tail) {
    const std::string text = tail;
    return key.size() >= text.size() &&
           key.compare(key.size() - text.size(), text.size(), text) == 0;
  };
  return ends("_gb_per_s") || ends("_tflops") || ends("_efficiency") ||
         key == "memory_bytes" || key == "multiprocessors";
}

std::string SetFigure(const std::string& key, const Figure& figure,
                      const Json& value, Card* card) {
  if (!value.is_number()) return "\"" + key + "\" must be a number";
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < 0 ||
      (number == 0 && IsPositive(key))) {
    return "\"" + key + "\" cannot be " + value.dump();
  }
  if (key.find("_efficiency") != std::string::npos && number > 1) {
    return "\"" + key + "\" cannot be more than 1";
  }
  std::string problem;
  std::visit(
      [&](auto member) {
        using Value = std::decay_t<decltype(card->*member)>;
        if constexpr (!std::is_floating_point_v<Value>) {
          const double most = std::is_same_v<Value, int> ? 2147483647.0 : 9e15;
          if (number != std::floor(number) || number > most) {
            problem = "\"" + key + "\" must be a whole number";
            return;
          }
        }
        card->*member = static_cast<Value>(number);
      },
      figure);
  return problem;
}

std::string SetCalls(const std::string& key, const Json& value,
                     std::map<std::string, double>* calls) {
  if (!value.is_object()) {
    return "\"" + key + "\" must map CUDA functions to nanoseconds";
  }
  for (const auto& [function, cost] : value.items()) {
    if (!Faults::Knows(function.c_str())) {
      return "\"" + key + "\" names " + function +
             ", which the simulated device does not have";
    }
    if (!cost.is_number() || !std::isfinite(cost.get<double>()) ||
        cost.get<double>() < 0) {
      return "\"" + key + "\": " + function + " must be nanoseconds";
    }
    (*calls)[function] = cost.get<double>();
  }
  return "";
}

}  // namespace

std::string ApplyProfile(const std::string& text, Card* card) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return "it is no JSON object";
  Card made = *card;
  if (root.contains("card")) {
    const Json& key = root["card"];
    const Card* preset =
        key.is_string() ? Card::Preset(key.get<std::string>()) : nullptr;
    if (preset == nullptr) {
      return "\"card\" must be one of " + Card::PresetNames();
    }
    made = *preset;
  }
  for (const auto& [key, value] : root.items()) {
    if (key == "card" || key == "about") continue;
    std::string problem = "there is no figure \"" + key + "\"";
    if (key == "calls_ns") {
      problem = SetCalls(key, value, &made.calls_ns);
    } else if (key == "burn_calls_ns") {
      problem = SetCalls(key, value, &made.burn_calls_ns);
    } else {
      for (const auto& [name, figure] : CardFigures()) {
        if (key == name) problem = SetFigure(key, figure, value, &made);
      }
    }
    if (!problem.empty()) return problem;
  }
  made.modelled = true;
  *card = made;
  return "";
}

std::string ApplyProfileFile(const std::string& path, Card* card) {
  std::ifstream file(path);
  if (!file) return "the file cannot be read";
  std::ostringstream text;
  text << file.rdbuf();
  return ApplyProfile(text.str(), card);
}

std::string ProfileText(const Card& card) {
  Json root;
  root["card"] = card.key;
  root["about"] = card.name;
  for (const auto& [name, figure] : CardFigures()) {
    std::visit([&, key = name](auto member) { root[key] = card.*member; },
               figure);
  }
  root["calls_ns"] = card.calls_ns;
  root["burn_calls_ns"] = card.burn_calls_ns;
  return root.dump(1) + "\n";
}

}  // namespace cudasim
