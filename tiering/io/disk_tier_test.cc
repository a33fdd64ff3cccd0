// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/disk_tier.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "allocator/base/check.h"
#include "tiering/io/break_rings_test.h"
#include "tiering/io/codec_data_test.h"
#include "tiering/io/disk_faults_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kSmall = 2 * kMiB;
constexpr Bytes kLarge = 32 * kMiB;

std::vector<std::string> log_lines;
int LinesWith(const std::string& text) {
  int count = 0;
  for (const std::string& line : log_lines) {
    count += line.find(text) != std::string::npos;
  }
  return count;
}

// Page-aligned memory, as staging buffers and host copies are.
class Pages {
 public:
  explicit Pages(Bytes bytes)
      : bytes_(bytes),
        data_(static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void Fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (Bytes at = 0; at < bytes_; at += 8) {
      const std::uint64_t word = random();
      std::memcpy(data_ + at, &word, 8);
    }
  }
  char* data() const { return data_; }
  Bytes bytes() const { return bytes_; }

 private:
  const Bytes bytes_;
  char* const data_;
};

using Without = DiskTier::Options::Without;

class DiskTierTest : public testing::Test {
 protected:
  DiskTierTest() : staging_{Pages(kLarge), Pages(kLarge)} {
    log_lines.clear();
    SetLogSink([](int, const char* text) { log_lines.push_back(text); });
    directory_ = testing::TempDir() + "disk" + std::to_string(getpid());
    std::filesystem::create_directory(directory_);
  }
  ~DiskTierTest() override {
    SetLogSink(nullptr);
    std::filesystem::remove_all(directory_);
  }
  DiskTier::Options Budget(Bytes budget, Without without = {}) {
    DiskTier::Options options;
    options.directory = directory_;
    options.budget = budget;
    options.max_chunk_bytes = kLarge;
    options.staging[0] = staging_[0].data();
    options.staging[1] = staging_[1].data();
    options.without = without;
    options.wrap_io = faults_.Wrap();
    return options;
  }
  std::unique_ptr<DiskTier> Open(Bytes budget, Without without = {}) {
    auto tier = DiskTier::Open(Budget(budget, without));
    EXPECT_TRUE(tier) << tier.error().message;
    return tier ? std::move(*tier) : nullptr;
  }

  std::string directory_;
  Pages staging_[2];
  DiskFaults faults_;
};

// Both sizes, through staging and through other memory, in every mode.
void RoundTrip(DiskTier& tier, char* staging) {
  for (const Bytes bytes :
       {kSmall, kLarge, Bytes{4096}, Bytes{5 * kMiB + 4096}}) {
    Pages data(bytes), back(bytes);
    data.Fill(bytes);
    const auto chunk = tier.Write(data.data(), bytes, 7, 1);
    ASSERT_TRUE(chunk) << chunk.error().message;
    ASSERT_TRUE(tier.Read(*chunk, back.data()));
    EXPECT_EQ(std::memcmp(data.data(), back.data(), bytes), 0);

    std::memcpy(staging, data.data(), bytes);
    const auto second = tier.Write(staging, bytes, 8, 1);
    ASSERT_TRUE(second) << second.error().message;
    EXPECT_EQ(second->checksum, chunk->checksum);
    std::memset(staging, 0, bytes);
    ASSERT_TRUE(tier.Read(*second, staging));
    EXPECT_EQ(std::memcmp(data.data(), staging, bytes), 0);
    tier.Free(*chunk);
    tier.Free(*second);
  }
  EXPECT_EQ(tier.used(), 0u);
}

TEST_F(DiskTierTest, RoundTripsWithEverythingTheKernelOffers) {
  const auto tier = Open(128 * kMiB);
  ASSERT_TRUE(tier);
  RoundTrip(*tier, staging_[0].data());
  if (tier->Mode().find("registered") == std::string::npos) {
    // The limit on locked memory: said once, and it worked all the same.
    EXPECT_EQ(LinesWith("not registered"), 1);
  } else {
    EXPECT_EQ(tier->Mode(), "io_uring, O_DIRECT, registered buffers");
  }
}

TEST_F(DiskTierTest, RoundTripsWithoutRegisteredBuffers) {
  const auto tier = Open(128 * kMiB, Without{.registration = true});
  ASSERT_TRUE(tier);
  RoundTrip(*tier, staging_[1].data());
  EXPECT_EQ(tier->Mode().find("registered"), std::string::npos);
  EXPECT_EQ(LinesWith("not registered"), 1);
}

TEST_F(DiskTierTest, RoundTripsWithoutIoUring) {
  const auto tier = Open(128 * kMiB, Without{.io_uring = true});
  ASSERT_TRUE(tier);
  RoundTrip(*tier, staging_[0].data());
  EXPECT_EQ(tier->Mode(), "preadv2/pwritev2, O_DIRECT");
  EXPECT_EQ(LinesWith("without io_uring"), 1);
}

TEST_F(DiskTierTest, RoundTripsWithNothingTheKernelOffers) {
  const auto tier = Open(128 * kMiB, Without{true, true, true, true});
  ASSERT_TRUE(tier);
  RoundTrip(*tier, staging_[0].data());
  EXPECT_EQ(tier->Mode(), "preadv2/pwritev2, buffered");
  EXPECT_EQ(LinesWith("O_TMPFILE"), 1);
  EXPECT_EQ(LinesWith("O_DIRECT is not possible"), 1);
}

TEST_F(DiskTierTest, ASpentQuotaIsAnErrorAndNotAFailure) {
  const auto tier = Open(2 * (kSmall + 4096));
  ASSERT_TRUE(tier);
  Pages data(kSmall), back(kSmall);
  data.Fill(1);
  const auto first = tier->Write(data.data(), kSmall, 1, 1);
  const auto second = tier->Write(data.data(), kSmall, 2, 1);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(tier->used(), 2 * (kSmall + 4096));
  for (int i = 0; i < 5; ++i) {
    const auto refused = tier->Write(data.data(), kSmall, 3, 1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kIo);
    EXPECT_NE(refused.error().message.find("disk budget"), std::string::npos);
  }
  EXPECT_FALSE(tier->offline());
  // The freed extent is used again, at the same place.
  tier->Free(*first);
  data.Fill(2);
  const auto third = tier->Write(data.data(), kSmall, 3, 2);
  ASSERT_TRUE(third) << third.error().message;
  EXPECT_EQ(third->place.offset(), first->place.offset());
  ASSERT_TRUE(tier->Read(*third, back.data()));
  EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
  EXPECT_EQ(tier->peak(), 2 * (kSmall + 4096));
}

TEST_F(DiskTierTest, AFlippedByteIsCorruptAndNamed) {
  for (const Without without : {Without{}, Without{.io_uring = true}}) {
    const auto tier = Open(64 * kMiB, without);
    ASSERT_TRUE(tier);
    Pages data(kSmall), back(kSmall);
    data.Fill(3);
    const auto chunk = tier->Write(data.data(), kSmall, 4711, 5);
    ASSERT_TRUE(chunk);
    faults_.FlipReads(1);
    const Status status = tier->Read(*chunk, back.data());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(status.error().message.find("chunk 4711 (generation 5"),
              std::string::npos)
        << status.error().message;
    EXPECT_NE(status.error().message.find("checksum"), std::string::npos);
    // As it was it is whole: nothing else was touched.
    EXPECT_TRUE(tier->Read(*chunk, back.data()));
  }
}

TEST_F(DiskTierTest, AnotherIdentityOrGenerationIsCorrupt) {
  const auto tier = Open(64 * kMiB);
  ASSERT_TRUE(tier);
  Pages data(kSmall), back(kSmall);
  data.Fill(4);
  const auto chunk = tier->Write(data.data(), kSmall, 10, 1);
  ASSERT_TRUE(chunk);
  DiskChunk wrong = *chunk;
  wrong.identity = 11;
  Status status = tier->Read(wrong, back.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(status.error().message.find("identity 10 instead of 11"),
            std::string::npos);
  wrong = *chunk;
  wrong.generation = 2;
  status = tier->Read(wrong, back.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(status.error().message.find("generation 1 instead of 2"),
            std::string::npos);
  // A chunk remembered after its place was used again.
  tier->Free(*chunk);
  const auto next = tier->Write(data.data(), kSmall, 12, 9);
  ASSERT_TRUE(next);
  ASSERT_EQ(next->place.offset(), chunk->place.offset());
  status = tier->Read(*chunk, back.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
}

TEST_F(DiskTierTest, AFullDiskIsSaidAndThreeInARowSwitchOff) {
  const auto tier = Open(64 * kMiB);
  ASSERT_TRUE(tier);
  Pages data(kSmall), back(kSmall);
  data.Fill(5);
  const auto kept = tier->Write(data.data(), kSmall, 1, 1);
  ASSERT_TRUE(kept);
  const Bytes used = tier->used();

  faults_.FailWrites(2);
  for (int i = 0; i < 2; ++i) {
    const auto failed = tier->Write(data.data(), kSmall, 2, 1);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::kIo);
    const std::string& message = failed.error().message;
    EXPECT_NE(message.find(directory_), std::string::npos) << message;
    EXPECT_NE(message.find("2.00 MiB"), std::string::npos);
    EXPECT_NE(message.find("No space left"), std::string::npos);
    EXPECT_NE(message.find("disk_dir"), std::string::npos);
  }
  // A success in between starts the count anew, and nothing leaked.
  const auto works = tier->Write(data.data(), kSmall, 3, 1);
  ASSERT_TRUE(works);
  tier->Free(*works);
  EXPECT_EQ(tier->used(), used);
  EXPECT_FALSE(tier->offline());

  faults_.FailWrites(3);
  for (int i = 0; i < 6; ++i) {
    EXPECT_FALSE(tier->Write(data.data(), kSmall, 2, 1));
    EXPECT_EQ(tier->offline(), i >= 2);
  }
  EXPECT_EQ(LinesWith("the disk tier is off"), 1);
  // What it holds stays readable.
  ASSERT_TRUE(tier->Read(*kept, back.data()));
  EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
}

TEST_F(DiskTierTest, RefusesWhatIsNotMadeOfPages) {
  const auto tier = Open(128 * kMiB);
  ASSERT_TRUE(tier);
  char* const data = staging_[0].data();
  for (const auto& refused :
       {tier->Write(data + 8, kSmall, 1, 1), tier->Write(data, 1000, 1, 1),
        tier->Write(data, 0, 1, 1), tier->Write(data, kLarge + 4096, 1, 1)}) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
  const auto written = tier->Write(data, kSmall, 1, 1);
  ASSERT_TRUE(written);
  const auto refused = [&](const std::function<void(DiskChunk*)>& made_wrong) {
    DiskChunk chunk = *written;
    made_wrong(&chunk);
    const Status status = tier->Read(chunk, data);
    return !status && status.error().code == ErrorCode::kInvalidArgument &&
           status.error().message.find("nothing was read") != std::string::npos;
  };
  EXPECT_TRUE(refused([](DiskChunk* c) { c->stored.bytes += 4096; }));
  EXPECT_TRUE(refused([](DiskChunk* c) { c->stored.bytes = 1000; }));
  EXPECT_TRUE(refused([](DiskChunk* c) { c->bytes -= 4096; }));
  EXPECT_TRUE(refused([](DiskChunk* c) { c->place.pieces[0].bytes += 4096; }));
  EXPECT_TRUE(refused([](DiskChunk* c) { c->place.pieces[0].bytes -= 4096; }));
  EXPECT_TRUE(refused([](DiskChunk* c) { c->place.count = 0; }));
  EXPECT_TRUE(refused([](DiskChunk* c) { c->place.count = 5; }));
  const auto none = DiskTier::Open(Budget(0));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
}

// Counts the descriptors of this process that are deleted files of ours.
int OpenSpillFiles(const std::string& directory) {
  int count = 0;
  DIR* const all = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(all)) {
    char target[PATH_MAX] = {};
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(link.c_str(), target, sizeof(target) - 1) <= 0) continue;
    struct stat status;
    if (std::string(target).find(directory) == 0 &&
        std::strstr(target, "(deleted)") != nullptr &&
        stat(link.c_str(), &status) == 0 && status.st_size > 0 &&
        (status.st_mode & 07777) == 0600) {
      ++count;
    }
  }
  closedir(all);
  return count;
}

TEST_F(DiskTierTest, AfterForkTheChildIsShutOutAndTheParentGoesOn) {
  const auto tier = Open(64 * kMiB);
  ASSERT_TRUE(tier);
  Pages data(kSmall), back(kSmall);
  data.Fill(6);
  const auto chunk = tier->Write(data.data(), kSmall, 1, 1);
  ASSERT_TRUE(chunk);
  EXPECT_EQ(OpenSpillFiles(directory_), 1);
  for (const bool abandons : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      if (abandons) tier->AbandonAfterFork();
      const Status read = tier->Read(*chunk, back.data());
      const auto write = tier->Write(data.data(), kSmall, 2, 1);
      tier->Free(*chunk);
      const bool shut = !read && read.error().code == ErrorCode::kShutdown &&
                        !write && write.error().code == ErrorCode::kShutdown;
      const bool closed = !abandons || OpenSpillFiles(directory_) == 0;
      _exit(shut && closed ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    // The child's Free and close changed nothing here.
    ASSERT_TRUE(tier->Read(*chunk, back.data()));
    EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
    const auto more = tier->Write(data.data(), kSmall, 3, 1);
    ASSERT_TRUE(more) << more.error().message;
    EXPECT_NE(more->place.offset(), chunk->place.offset());
    tier->Free(*more);
  }
}

TEST_F(DiskTierTest, ARingThatBreaksIsLeftBehind) {
  const auto tier = Open(64 * kMiB);
  ASSERT_TRUE(tier);
  if (tier->Mode().find("io_uring") == std::string::npos) {
    GTEST_SKIP() << "no io_uring here";
  }
  Pages data(kSmall), back(kSmall);
  data.Fill(8);
  const auto before = tier->Write(data.data(), kSmall, 1, 1);
  ASSERT_TRUE(before);
  ASSERT_EQ(BreakRings(), 1);
  ASSERT_TRUE(tier->Read(*before, back.data()));
  EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
  const auto after = tier->Write(data.data(), kSmall, 2, 1);
  ASSERT_TRUE(after) << after.error().message;
  ASSERT_TRUE(tier->Read(*after, back.data()));
  EXPECT_EQ(tier->Mode(), "preadv2/pwritev2, O_DIRECT");
  EXPECT_EQ(LinesWith("io_uring stopped"), 1);
  EXPECT_FALSE(tier->offline());
}

// What lies in the file at `offset` changes, as on a disk that rots.
void FlipBit(const std::string& directory, std::uint64_t offset) {
  DIR* const all = opendir("/proc/self/fd");
  int flipped = 0;
  while (const dirent* entry = readdir(all)) {
    char target[PATH_MAX] = {};
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(link.c_str(), target, sizeof(target) - 1) <= 0) continue;
    if (std::string(target).find(directory) != 0) continue;
    const int fd = open(link.c_str(), O_RDWR | O_CLOEXEC);
    char byte = 0;
    const auto at = static_cast<off_t>(offset);
    flipped += pread(fd, &byte, 1, at) == 1;
    byte ^= 0x10;
    flipped += pwrite(fd, &byte, 1, at) == 1;
    close(fd);
  }
  closedir(all);
  ASSERT_EQ(flipped, 2);
}

constexpr DiskCodec kCodecs[] = {DiskCodec::kLz4, DiskCodec::kZstd};

TEST_F(DiskTierTest, CompressedChunksComeBackInEveryMode) {
  for (const Without without : {Without{}, Without{.io_uring = true},
                                Without{true, true, true, true}}) {
    for (const DiskCodec codec : kCodecs) {
      DiskTier::Options options = Budget(64 * kMiB, without);
      options.codec = codec;
      auto opened = DiskTier::Open(options);
      ASSERT_TRUE(opened) << opened.error().message;
      DiskTier& tier = **opened;
      Bytes written = 0, stored = 0;
      for (const char* const kind : kDataKinds) {
        for (const Bytes bytes : {Bytes{4096}, 5 * kMiB + 4096}) {
          SCOPED_TRACE(std::string(kind) + " " + std::to_string(bytes));
          Pages data(bytes), back(bytes);
          FillKind(kind, data.data(), bytes);
          const auto chunk = tier.Write(data.data(), bytes, 7, 1);
          ASSERT_TRUE(chunk) << chunk.error().message;
          EXPECT_EQ(tier.used(), 4096 + chunk->stored.bytes);
          EXPECT_EQ(DiskTier::FileBytes(*chunk), tier.used());
          ASSERT_TRUE(tier.Read(*chunk, back.data()));
          EXPECT_EQ(std::memcmp(data.data(), back.data(), bytes), 0);
          tier.Free(*chunk);
          EXPECT_EQ(tier.used(), 0u);
          written += bytes;
          stored += chunk->stored.bytes;
        }
      }
      EXPECT_EQ(tier.written(), written);
      EXPECT_EQ(tier.written_stored(), stored);
      EXPECT_LT(stored, written / 4 * 3);
    }
  }
}

TEST_F(DiskTierTest, AChunkMayHaveACodecOfItsOwn) {
  DiskTier::Options options = Budget(64 * kMiB);
  options.codec = DiskCodec::kLz4;
  auto opened = DiskTier::Open(options);
  ASSERT_TRUE(opened);
  Pages data(kSmall), back(kSmall);
  FillKind("sparse", data.data(), kSmall);
  std::vector<DiskChunk> chunks;
  const auto write = [&](std::optional<DiskCodec> codec) {
    chunks.push_back(
        (*opened)->Write(data.data(), kSmall, 1, 1, codec).value());
    return chunks.back().stored.codec;
  };
  EXPECT_EQ(write(std::nullopt), DiskCodec::kLz4);
  EXPECT_EQ(write(DiskCodec::kOff), DiskCodec::kOff);
  EXPECT_EQ(write(DiskCodec::kZstd), DiskCodec::kZstd);
  for (const DiskChunk& chunk : chunks) {
    std::memset(back.data(), 0, kSmall);
    ASSERT_TRUE((*opened)->Read(chunk, back.data()));
    EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
  }
}

TEST_F(DiskTierTest, AFlippedBitOfACompressedChunkIsCorruptWhereverItIs) {
  for (const DiskCodec codec : kCodecs) {
    const auto tier = Open(64 * kMiB);
    ASSERT_TRUE(tier);
    Pages data(kSmall), back(kSmall);
    FillKind("sparse", data.data(), kSmall);
    const auto chunk = tier->Write(data.data(), kSmall, 4711, 5, codec);
    ASSERT_TRUE(chunk);
    ASSERT_EQ(chunk->stored.codec, codec);
    const std::uint64_t payload = chunk->place.offset() + 4096;
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t i = 0; i < 72; ++i) {  // all of the header
      offsets.push_back(chunk->place.offset() + i);
    }
    for (std::uint64_t i = 0; i < chunk->stored.bytes; i += 9973) {
      offsets.push_back(payload + i);
    }
    // Of the zeros at the end, too.
    offsets.push_back(payload + chunk->stored.bytes - 1);
    for (const std::uint64_t offset : offsets) {
      FlipBit(directory_, offset);
      const Status status = tier->Read(*chunk, back.data());
      ASSERT_FALSE(status) << offset;
      ASSERT_EQ(status.error().code, ErrorCode::kCorrupt);
      EXPECT_NE(status.error().message.find("chunk 4711 (generation 5"),
                std::string::npos);
      FlipBit(directory_, offset);
    }
    ASSERT_TRUE(tier->Read(*chunk, back.data()));
    EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
  }
}

TEST_F(DiskTierTest, WhatIsRememberedOfACompressedChunkIsCompared) {
  const auto tier = Open(64 * kMiB);
  ASSERT_TRUE(tier);
  Pages data(kSmall), back(kSmall);
  FillKind("sparse", data.data(), kSmall);
  const auto chunk =
      tier->Write(data.data(), kSmall, 1, 1, DiskCodec::kZstd).value();
  const auto expect = [&](const DiskChunk& wrong, ErrorCode code,
                          const char* says) {
    const Status status = tier->Read(wrong, back.data());
    ASSERT_FALSE(status) << says;
    EXPECT_EQ(status.error().code, code) << says;
    EXPECT_NE(status.error().message.find(says), std::string::npos)
        << status.error().message;
  };
  DiskChunk wrong = chunk;
  wrong.stored.codec = DiskCodec::kLz4;
  expect(wrong, ErrorCode::kCorrupt, "its codec is 2 instead of 1");
  wrong = chunk;
  wrong.stored.width = chunk.stored.width == 8 ? 4 : 8;
  expect(wrong, ErrorCode::kCorrupt, "a width of");
  wrong = chunk;
  wrong.payload_checksum ^= 1;
  expect(wrong, ErrorCode::kCorrupt, "payload of checksum");
  wrong = chunk;
  wrong.stored.bytes = 2 * kLarge;
  expect(wrong, ErrorCode::kInvalidArgument, "nothing was read");
}

// Holes of the size of compressed chunks hold one that is not.
TEST_F(DiskTierTest, AFragmentedFileTakesWhatHasRoomInPieces) {
  const auto tier = Open(8 * kMiB);
  ASSERT_TRUE(tier);
  Pages data(kSmall), noise(kSmall), back(kSmall);
  FillKind("bf16", data.data(), kSmall);
  FillKind("random", noise.data(), kSmall);
  std::vector<DiskChunk> chunks;
  for (;;) {
    const auto chunk = tier->Write(data.data(), kSmall, 1, 1, DiskCodec::kZstd);
    if (!chunk) break;
    chunks.push_back(*chunk);
  }
  ASSERT_GT(chunks.size(), 4u);  // as many as there would be raw
  EXPECT_FALSE(tier->HasRoom(kSmall));
  tier->Free(chunks[0]);
  tier->Free(chunks[2]);
  ASSERT_TRUE(tier->HasRoom(kSmall));
  const auto raw = tier->Write(noise.data(), kSmall, 2, 1);
  ASSERT_TRUE(raw) << raw.error().message;
  EXPECT_GT(raw->place.count, 1);
  ASSERT_TRUE(tier->Read(*raw, back.data()));
  EXPECT_EQ(std::memcmp(noise.data(), back.data(), kSmall), 0);
  ASSERT_TRUE(tier->Read(chunks[1], back.data()));
  EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
}

// Many chunks of mixed sizes come and go; each is read back whole.
TEST_F(DiskTierTest, RandomChunksComeBackWhole) {
  const auto tier = Open(48 * kMiB);
  ASSERT_TRUE(tier);
  std::mt19937 random(11);
  struct Stored {
    DiskChunk chunk;
    std::uint64_t seed;
  };
  std::vector<Stored> stored;
  Pages data(8 * kMiB), back(8 * kMiB);
  int refused = 0;
  for (std::uint64_t step = 1; step <= 120; ++step) {
    if (stored.empty() || random() % 5 < 3) {
      const Bytes bytes = kMiB << (random() % 4);
      data.Fill(step);
      const auto chunk = tier->Write(data.data(), bytes, step, step * 2);
      if (chunk) {
        stored.push_back({*chunk, step});
      } else {
        ++refused;
      }
      continue;
    }
    const std::size_t i = random() % stored.size();
    data.Fill(stored[i].seed);
    ASSERT_TRUE(tier->Read(stored[i].chunk, back.data()));
    ASSERT_EQ(std::memcmp(data.data(), back.data(), stored[i].chunk.bytes), 0);
    tier->Free(stored[i].chunk);
    stored.erase(stored.begin() + static_cast<std::ptrdiff_t>(i));
  }
  EXPECT_GT(refused, 0);
  EXPECT_LE(tier->peak(), tier->budget());
}

}  // namespace
}  // namespace stratalloc
