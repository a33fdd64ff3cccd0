// SPDX-License-Identifier: Apache-2.0
// Numbers as planes: all first bytes of elements of `width` bytes, then all
// second ones, and so on. The exponents of floats resemble each other and lie
// side by side then; the mantissas, which do not, are in planes of their own.
//
// Thread-safety: pure functions. Allocate nothing.
// REQUIRES of both: width is 1, 2, 4 or 8 and divides bytes; no overlap.
#ifndef STRATALLOC_TIERING_IO_BYTE_PLANES_H_
#define STRATALLOC_TIERING_IO_BYTE_PLANES_H_

#include "allocator/base/bytes.h"

namespace stratalloc {

void SplitPlanes(const void* elements, Bytes bytes, int width, void* planes);
void JoinPlanes(const void* planes, Bytes bytes, int width, void* elements);

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_BYTE_PLANES_H_
