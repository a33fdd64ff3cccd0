// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/byte_planes.h"

#include <cstring>

namespace stratalloc {
namespace {

// Sixteen elements at a time in vectors of sixteen bytes, which every machine
// has: each round takes even and odd bytes apart, or puts them together.
using Vector = unsigned char __attribute__((vector_size(16)));
constexpr Bytes kGroup = sizeof(Vector);

Vector Even(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,
                                 22, 24, 26, 28, 30);
}
Vector Odd(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21,
                                 23, 25, 27, 29, 31);
}
Vector Low(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                 6, 22, 7, 23);
}
Vector High(Vector a, Vector b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                 29, 14, 30, 15, 31);
}

Vector Load(const unsigned char* from) {
  Vector vector;
  std::memcpy(&vector, from, kGroup);
  return vector;
}

// One group's planes `plane`, `plane + step`, ...: the bytes of kCount vectors
// are of these in turn. `distance`: from a plane to the next.
template <int kCount>
void SplitGroup(const Vector* group, Bytes plane, Bytes step, Bytes distance,
                unsigned char* to) {
  if constexpr (kCount == 1) {
    std::memcpy(to + plane * distance, group, kGroup);
  } else {
    Vector even[kCount / 2], odd[kCount / 2];
    for (int i = 0; i < kCount / 2; ++i) {
      even[i] = Even(group[2 * i], group[2 * i + 1]);
      odd[i] = Odd(group[2 * i], group[2 * i + 1]);
    }
    SplitGroup<kCount / 2>(even, plane, 2 * step, distance, to);
    SplitGroup<kCount / 2>(odd, plane + step, 2 * step, distance, to);
  }
}

template <int kCount>
void JoinGroup(const unsigned char* from, Bytes plane, Bytes step,
               Bytes distance, Vector* group) {
  if constexpr (kCount == 1) {
    *group = Load(from + plane * distance);
  } else {
    Vector even[kCount / 2], odd[kCount / 2];
    JoinGroup<kCount / 2>(from, plane, 2 * step, distance, even);
    JoinGroup<kCount / 2>(from, plane + step, 2 * step, distance, odd);
    for (int i = 0; i < kCount / 2; ++i) {
      group[2 * i] = Low(even[i], odd[i]);
      group[2 * i + 1] = High(even[i], odd[i]);
    }
  }
}

template <int kWidth>
void Split(const unsigned char* from, Bytes elements, unsigned char* to) {
  Bytes at = 0;
  for (; at + kGroup <= elements; at += kGroup) {
    Vector group[kWidth];
    std::memcpy(group, from + at * kWidth, sizeof(group));
    SplitGroup<kWidth>(group, 0, 1, elements, to + at);
  }
  for (; at < elements; ++at) {
    for (Bytes plane = 0; plane < kWidth; ++plane) {
      to[plane * elements + at] = from[at * kWidth + plane];
    }
  }
}

template <int kWidth>
void Join(const unsigned char* from, Bytes elements, unsigned char* to) {
  Bytes at = 0;
  for (; at + kGroup <= elements; at += kGroup) {
    Vector group[kWidth];
    JoinGroup<kWidth>(from + at, 0, 1, elements, group);
    std::memcpy(to + at * kWidth, group, sizeof(group));
  }
  for (; at < elements; ++at) {
    for (Bytes plane = 0; plane < kWidth; ++plane) {
      to[at * kWidth + plane] = from[plane * elements + at];
    }
  }
}

}  // namespace

void SplitPlanes(const void* elements, Bytes bytes, int width, void* planes) {
  const auto* const from = static_cast<const unsigned char*>(elements);
  auto* const to = static_cast<unsigned char*>(planes);
  switch (width) {
    case 2:
      return Split<2>(from, bytes / 2, to);
    case 4:
      return Split<4>(from, bytes / 4, to);
    case 8:
      return Split<8>(from, bytes / 8, to);
    default:
      std::memcpy(to, from, bytes);
  }
}

void JoinPlanes(const void* planes, Bytes bytes, int width, void* elements) {
  const auto* const from = static_cast<const unsigned char*>(planes);
  auto* const to = static_cast<unsigned char*>(elements);
  switch (width) {
    case 2:
      return Join<2>(from, bytes / 2, to);
    case 4:
      return Join<4>(from, bytes / 4, to);
    case 8:
      return Join<8>(from, bytes / 8, to);
    default:
      std::memcpy(to, from, bytes);
  }
}

}  // namespace stratalloc
