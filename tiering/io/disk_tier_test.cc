// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/disk_tier.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tiering/io/break_rings_test.h"
#include "tiering/io/disk_tier_fixture_test.h"

namespace stratalloc {
namespace {

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
