// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tiering/io/byte_planes.h"
#include "tiering/io/chunk.h"
#include "tiering/io/codec_data_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kMost = 32 * kMiB;
constexpr Bytes kPage = 4096;
constexpr DiskCodec kCodecs[] = {DiskCodec::kLz4, DiskCodec::kZstd};

TEST(BytePlanes, TakenApartAndJoinedAtEveryWidth) {
  std::mt19937 random(1);
  for (const int width : {1, 2, 4, 8}) {
    // Groups of sixteen elements, and what is left of one.
    for (const Bytes elements : {1, 7, 16, 17, 512, 1000}) {
      const Bytes bytes = elements * static_cast<Bytes>(width);
      std::vector<unsigned char> data(bytes), planes(bytes), back(bytes);
      for (unsigned char& byte : data) {
        byte = static_cast<unsigned char>(random());
      }
      SplitPlanes(data.data(), bytes, width, planes.data());
      for (Bytes i = 0; i < bytes; ++i) {
        const auto w = static_cast<Bytes>(width);
        ASSERT_EQ(planes[i % w * elements + i / w], data[i])
            << width << " " << elements << " " << i;
      }
      JoinPlanes(planes.data(), bytes, width, back.data());
      ASSERT_EQ(back, data) << width << " " << elements;
    }
  }
}

TEST(DiskCodecNames, AreReadAndWritten) {
  for (const char* const name : {"off", "lz4", "zstd"}) {
    const auto codec = DiskCodecOf(name);
    ASSERT_TRUE(codec) << name;
    EXPECT_STREQ(DiskCodecName(*codec), name);
  }
  EXPECT_FALSE(DiskCodecOf("zip"));
  EXPECT_FALSE(DiskCodecOf(""));
}

class CodecTest : public testing::Test {
 protected:
  // What Encode made is plain in `back_`.
  bool Decodes(const Stored& stored, Bytes bytes) {
    back_.assign(bytes, 0x55);
    return codec_.Decode(stored, back_.data(), bytes);
  }
  std::vector<char> Make(const std::string& kind, Bytes bytes) {
    std::vector<char> data(bytes);
    FillKind(kind, data.data(), bytes);
    return data;
  }

  ChunkCodec codec_{kMost};
  std::vector<char> back_;
};

TEST_F(CodecTest, EveryKindOfDataComesBack) {
  for (const std::string kind : kDataKinds) {
    for (const Bytes bytes :
         {kPage, 3 * kPage, 512 * kKiB, 2 * kMiB + kPage, kMost}) {
      // One of the large ones is enough of what sanitizers take long for.
      if (bytes == kMost && kind != "fp32") continue;
      const std::vector<char> data = Make(kind, bytes);
      for (const DiskCodec codec : kCodecs) {
        const Stored stored = codec_.Encode(codec, data.data(), bytes);
        SCOPED_TRACE(kind + " " + std::to_string(bytes) + " " +
                     DiskCodecName(codec));
        EXPECT_EQ(stored.bytes % kPage, 0u);
        if (stored.codec == DiskCodec::kOff) {
          EXPECT_EQ(stored.bytes, bytes);
          continue;
        }
        EXPECT_EQ(stored.codec, codec);
        EXPECT_LE(stored.bytes, bytes - bytes / 16);
        ASSERT_TRUE(Decodes(stored, bytes));
        ASSERT_TRUE(back_ == data);
      }
    }
  }
}

TEST_F(CodecTest, WhatTheBytesAreDecides) {
  constexpr Bytes kBytes = 4 * kMiB;
  struct Expected {
    const char* kind;
    DiskCodec codec;
    int width;
    double least, most;  // how many times smaller
  };
  for (const Expected& e : {
           Expected{"random", DiskCodec::kLz4, 1, 1, 1},
           Expected{"random", DiskCodec::kZstd, 1, 1, 1},
           Expected{"constant", DiskCodec::kLz4, 1, 100, 1000},
           Expected{"constant", DiskCodec::kZstd, 1, 100, 1025},
           Expected{"sparse", DiskCodec::kZstd, 1, 5, 20},
           Expected{"fp32", DiskCodec::kZstd, 4, 1.1, 1.5},
           Expected{"bf16", DiskCodec::kZstd, 2, 1.3, 1.6},
           Expected{"fp16", DiskCodec::kZstd, 2, 1.1, 1.4},
           Expected{"int64", DiskCodec::kLz4, 8, 3, 5},
           Expected{"halves", DiskCodec::kLz4, 1, 1.9, 2},
       }) {
    SCOPED_TRACE(std::string(e.kind) + " " + DiskCodecName(e.codec));
    const std::vector<char> data = Make(e.kind, kBytes);
    const Stored stored = codec_.Encode(e.codec, data.data(), kBytes);
    EXPECT_EQ(stored.codec, e.most == 1 ? DiskCodec::kOff : e.codec);
    EXPECT_EQ(stored.width, e.width);
    const double ratio =
        static_cast<double>(kBytes) / static_cast<double>(stored.bytes);
    EXPECT_GE(ratio, e.least);
    EXPECT_LE(ratio, e.most);
  }
}

TEST_F(CodecTest, SamplesThatMisleadSaveNothing) {
  constexpr Bytes kBytes = 4 * kMiB;
  std::vector<char> data = Make("random", kBytes);
  // The pages that are looked at, and no others.
  for (Bytes i = 0; i < 16; ++i) {
    std::memset(data.data() + (kBytes / kPage - 1) * i / 15 * kPage, 0, kPage);
  }
  for (const DiskCodec codec : kCodecs) {
    EXPECT_EQ(codec_.Encode(codec, data.data(), kBytes).codec, DiskCodec::kOff);
  }
}

TEST_F(CodecTest, NothingIsDoneWhereItIsOffOrDoesNotFit) {
  const std::vector<char> data = Make("constant", 2 * kPage);
  EXPECT_EQ(codec_.Encode(DiskCodec::kOff, data.data(), 2 * kPage).codec,
            DiskCodec::kOff);
  ChunkCodec small(kPage), none(0);
  for (const DiskCodec codec : kCodecs) {
    EXPECT_EQ(codec_.Encode(codec, data.data(), kPage).bytes, kPage);
    for (ChunkCodec* one : {&small, &none}) {
      const Stored stored = one->Encode(codec, data.data(), 2 * kPage);
      EXPECT_EQ(stored.codec, DiskCodec::kOff);
      EXPECT_EQ(stored.bytes, 2 * kPage);
    }
  }
}

// Every claim of a header and every length inside, made wrong: an answer, and
// no byte beyond what was given (the sanitizers look).
TEST_F(CodecTest, HostileChunksAreRefused) {
  for (const DiskCodec codec : kCodecs) {
    for (const std::string kind : {"bf16", "constant", "int64"}) {
      constexpr Bytes kBytes = kMiB + kPage;
      SCOPED_TRACE(kind + " " + DiskCodecName(codec));
      const std::vector<char> data = Make(kind, kBytes);
      const Stored stored = codec_.Encode(codec, data.data(), kBytes);
      ASSERT_EQ(stored.codec, codec);
      const std::vector<char> whole(codec_.buffer(),
                                    codec_.buffer() + stored.bytes);
      const auto repair = [&] {
        std::memcpy(codec_.buffer(), whole.data(), whole.size());
      };
      for (const int width : {-1, 0, 1, 2, 3, 4, 8, 16, 1 << 30}) {
        if (width == stored.width) continue;
        Stored other = stored;
        other.width = width;
        EXPECT_FALSE(Decodes(other, kBytes)) << width;
      }
      for (const Bytes bytes : {Bytes{0}, kPage, stored.bytes - kPage,
                                stored.bytes + kPage, kMost}) {
        if (bytes == stored.bytes) continue;
        Stored other = stored;
        other.bytes = bytes;
        EXPECT_FALSE(Decodes(other, kBytes)) << bytes;
      }
      Stored other = stored;
      other.codec =
          codec == DiskCodec::kLz4 ? DiskCodec::kZstd : DiskCodec::kLz4;
      EXPECT_FALSE(Decodes(other, kBytes));
      other.codec = DiskCodec::kOff;
      EXPECT_FALSE(Decodes(other, kBytes));
      for (const Bytes bytes : {kPage, kBytes - kPage, kBytes + kPage}) {
        EXPECT_FALSE(Decodes(stored, bytes)) << bytes;
      }
      for (const std::uint32_t length :
           {0U, 1U, (1U << 18) - 1, 1U << 31, ~0U}) {
        for (int stream = 0; stream < stored.width; ++stream) {
          std::memcpy(codec_.buffer() + stream * 4, &length, sizeof(length));
          EXPECT_FALSE(Decodes(stored, kBytes)) << length << " " << stream;
          repair();
        }
      }
      ASSERT_TRUE(Decodes(stored, kBytes));
    }
  }
}

// Streams that say they are whole planes, of more than there is.
TEST_F(CodecTest, NothingIsReadBehindThePayload) {
  ChunkCodec small(kMiB);
  std::vector<char> to(kMiB);
  const std::uint32_t lengths[] = {512 * 1024, 512 * 1024};
  std::memcpy(small.buffer(), lengths, sizeof(lengths));
  for (const Bytes stored : {kPage, kMiB}) {
    EXPECT_FALSE(small.Decode({DiskCodec::kLz4, 1, stored}, to.data(), kMiB));
  }
}

// A flipped bit gives other bytes or none; never a crash. What it gives is told
// from what was written by the checksums of the chunk.
TEST_F(CodecTest, FlippedBitsGiveAnAnswer) {
  std::mt19937_64 random(5);
  for (const DiskCodec codec : kCodecs) {
    constexpr Bytes kBytes = 256 * kKiB;
    const std::vector<char> data = Make("sparse", kBytes);
    const Stored stored = codec_.Encode(codec, data.data(), kBytes);
    ASSERT_EQ(stored.codec, codec);
    const std::uint64_t checksum =
        PayloadChecksum(codec_.buffer(), stored.bytes);
    const std::uint64_t plain = PayloadChecksum(data.data(), kBytes);
    int refused = 0;
    for (int i = 0; i < 400; ++i) {
      const Bytes at = i < 64 ? static_cast<Bytes>(i) : random() % stored.bytes;
      const char bit = static_cast<char>(1 << random() % 8);
      codec_.buffer()[at] ^= bit;
      const bool made = Decodes(stored, kBytes);
      refused += !made;
      // What no checksum of the chunk tells is what was written.
      if (PayloadChecksum(codec_.buffer(), stored.bytes) == checksum ||
          (made && PayloadChecksum(back_.data(), kBytes) == plain)) {
        EXPECT_TRUE(made && back_ == data) << at;
      }
      codec_.buffer()[at] ^= bit;
    }
    EXPECT_GT(refused, 0);
    ASSERT_TRUE(Decodes(stored, kBytes));
    ASSERT_TRUE(back_ == data);
  }
}

}  // namespace
}  // namespace stratalloc
