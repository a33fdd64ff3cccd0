// SPDX-License-Identifier: Apache-2.0
//
// profile.h: figures of a card from a JSON file (CUDASIM_PROFILE), so that a
// measured card can be dropped in. One flat object: "card" names the preset it
// starts from, the figures carry the names of cards.h, "calls_ns" maps CUDA
// functions to nanoseconds, "about" is free text. What is not named stays as
// the preset has it.
//
// An unknown key, an unknown function or a value that makes no sense is an
// error with the key's name: a figure that was misspelt and silently ignored
// would make every result wrong.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_PROFILE_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_PROFILE_H_

#include <string>

#include "tests/simulator/cudasim/cards.h"

namespace cudasim {

// Applies the JSON text to the card, which is then modelled. Returns an empty
// string, or what is wrong with it.
std::string ApplyProfile(const std::string& text, Card* card);
// The contents of the file, applied. "cannot be read" is an error too.
std::string ApplyProfileFile(const std::string& path, Card* card);

// The card as a profile that gives the same card again.
std::string ProfileText(const Card& card);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_PROFILE_H_
