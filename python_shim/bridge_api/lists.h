// SPDX-License-Identifier: Apache-2.0
// For operators that act element by element of lists and may run in slices of
// them, each entered by itself (operators.h). Nothing here pins, moves or
// promises anything. `stream` is the one that the operator will run on: where
// it captures, or another that this thread captures on, the lists stay whole.
// For threads see setup.h; nothing here fails.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_LISTS_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_LISTS_H_

#include <cstddef>
#include <optional>
#include <span>

#include "allocator/base/bytes.h"
#include "allocator/base/export.h"
#include "allocator/base/ids.h"
#include "tiering/engine/access.h"

namespace stratalloc::core {

// True: enter the operator as a whole. All of `accesses` is on the device and
// the `results` bytes that it will allocate fit beside everything else; or
// slices would not help: inside another operator, inside a capture, tiering
// off.
STRATALLOC_API bool ListFits(int device, StreamId stream,
                             std::span<const Access> accesses, Bytes results);
// How many elements, from number `first` on, the next slice should have: as
// many as leave most of the device to others, at least 1.
// REQUIRES: first < the number of elements.
STRATALLOC_API std::size_t NextSlice(int device, StreamId stream,
                                     const ListElements& elements,
                                     std::size_t first);
// The element that takes most, if that is more than everything which could
// leave now would free. It is to be tried before the first slice runs: if it is
// refused nothing of the lists was touched.
STRATALLOC_API std::optional<std::size_t> DoubtfulElement(
    int device, StreamId stream, const ListElements& elements);

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_LISTS_H_
