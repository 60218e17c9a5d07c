// The memory for the states of sequences, and the hash that protects copies of them.

#include "model/state/state_pool.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/state/slot_layout.h"
#include "model/state/xxhash64.h"

namespace aft {
namespace {

// Two layers. The second grows: it has two parts (heads) of up to 100 tokens, in granules of 8
// tokens of 12 bytes.
std::vector<StateSpec> Layers() {
  StateSpec constant;
  constant.floats = 7;
  constant.sections = {{"a", 0, 3}, {"b", 3, 4}};
  StateSpec growing;
  growing.floats = 5 + 2 * 13 * 24;
  growing.sections = {{"first", 0, 5}, {"keys", 5, 2 * 13 * 24, 2, 8, 24, 12, 1, true}};
  growing.floats_per_token = 6;
  return {constant, growing};
}

// Returns the bytes that a sequence of `position` tokens has in `slot`.
std::string Written(const StatePool& pool, int32_t slot, int64_t position) {
  const auto kept = pool.KeepOnHost(slot, position);
  std::string bytes(static_cast<size_t>(pool.layout().UsedBytes(position)), 'x');
  EXPECT_TRUE(kept.ok() && kept->Write(bytes.data()).ok());
  return bytes;
}

TEST(StatePoolTest, PlacesLayersAndSlotsAtCacheLines) {
  auto pool = StatePool::Create(Layers(), 3);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ(pool->slots(), 3);
  EXPECT_EQ(pool->slot_bytes(), StatePool::SlotBytes(Layers()));
  EXPECT_EQ(pool->slot_bytes() % 64, 0);
  EXPECT_EQ(pool->part(1).base - pool->part(0).base, 16);
  EXPECT_EQ(pool->part(0).slot_stride * 4, pool->slot_bytes());
}

TEST(StatePoolTest, CopiesWhatASequenceUsesAndNothingElse) {
  auto pool = StatePool::Create(Layers(), 2);
  ASSERT_TRUE(pool.ok());
  const int64_t stride = pool->part(0).slot_stride;
  float* const from = pool->part(0).base;
  float* const to = from + stride;
  for (int64_t i = 0; i < stride; ++i) {
    from[i] = static_cast<float>(i);
    to[i] = -1;
  }
  EXPECT_EQ(pool->layout().UsedBytes(0), 0);
  // 9 tokens are two granules of each part.
  EXPECT_EQ(pool->layout().UsedBytes(9), 4 * (7 + 5 + 2 * 2 * 24));
  EXPECT_EQ(pool->layout().UsedBytes(100), 4 * (7 + 5 + 2 * 13 * 24));
  ASSERT_TRUE(pool->CopySlot(0, 1, 9).ok());
  for (int64_t i = 0; i < stride; ++i) {
    const int64_t grown = i - 16 - 5;  // within the section that grows
    const bool used = i < 7 || (i >= 16 && grown < 0) ||
                      (grown >= 0 && grown < 2 * 13 * 24 && grown % (13 * 24) < 2 * 24);
    EXPECT_EQ(to[i], used ? static_cast<float>(i) : -1.0F) << i;
  }

  const std::string bytes = Written(*pool, 1, 9);
  std::memset(from, 0, static_cast<size_t>(pool->slot_bytes()));
  ASSERT_TRUE(pool->ReadSlot(0, 9, bytes.data()).ok());
  EXPECT_EQ(Written(*pool, 0, 9), bytes);
  EXPECT_EQ(from[stride - 1], 0.0F);
}

// The state has rings, interleaved lanes with padding, and parts that grow. A copy has the bytes of
// the tokens so far, and zeros where the slot still holds what other sequences wrote.
TEST(StatePoolTest, WritesWhatTheSequenceWroteAndZerosForTheRest) {
  constexpr int64_t kMost = 24;  // tokens that the growing section has room for
  constexpr int64_t kSpan = 6;   // tokens of a granule of keys: two blocks of four lanes
  constexpr int64_t kSpanFloats = 2 * 2 * 4;
  StateSpec spec;
  spec.sections = {{"sums", 0, 3}};
  const auto add = [&spec](StateSection section) {
    section.offset = spec.sections.back().offset + spec.sections.back().floats;
    spec.sections.push_back(section);
  };
  add({"bf16_ring", 0, 8, 1, 3, 8, 10});  // three rows of five numbers, half a float of padding
  add({"keys", 0, 2 * 2 * kSpanFloats, 2, kSpan, kSpanFloats, 8, 4});  // the last two spans
  add({"more_keys", 0, 2 * 4 * kSpanFloats, 2, kSpan, kSpanFloats, 8, 4, true});
  add({"values", 0, 2 * kMost * 3, 2, 1, 3, 12, 1, true});
  spec.floats = spec.sections.back().offset + spec.sections.back().floats;
  auto pool = StatePool::Create({spec}, 2);
  ASSERT_TRUE(pool.ok());
  for (int64_t position = 0; position <= kMost; ++position) {
    SCOPED_TRACE(position);
    // What each token writes, float by float or, in the ring, byte by byte.
    std::string expected;
    const auto range = [&](int64_t bytes, const auto& write) {
      std::string written(static_cast<size_t>(bytes), '\0');
      const auto mark = [&written](int64_t at, int64_t size) {
        written.replace(static_cast<size_t>(at), static_cast<size_t>(size),
                        static_cast<size_t>(size), '\xFF');
      };
      for (int64_t token = 0; token < position; ++token) write(token, mark);
      expected += written;
    };
    if (position > 0) {
      range(12, [](int64_t, const auto& mark) { mark(0, 12); });
      range(32, [](int64_t token, const auto& mark) { mark(token % 3 * 10, 10); });
      for (const int64_t spans : {int64_t{2}, (position + kSpan - 1) / kSpan}) {
        for (int head = 0; head < 2; ++head) {
          range(spans * kSpanFloats * 4, [spans](int64_t token, const auto& mark) {
            const int64_t lane = token % kSpan;
            for (int64_t i = 0; i < 2; ++i) {
              mark(4 * (token / kSpan % spans * kSpanFloats + (lane / 4 * 2 + i) * 4 + lane % 4),
                   4);
            }
          });
        }
      }
      for (int head = 0; head < 2; ++head) {
        range(position * 12, [](int64_t token, const auto& mark) { mark(token * 12, 12); });
      }
    }
    std::memset(pool->part(0).base + pool->part(0).slot_stride, 0xFF,
                static_cast<size_t>(pool->slot_bytes()));
    const std::string bytes = Written(*pool, 1, position);
    ASSERT_EQ(bytes.size(), expected.size());
    EXPECT_TRUE(bytes == expected);
  }
}

TEST(StatePoolTest, ScratchIsSeparateAndClearedWithItsState) {
  std::vector<StateSpec> layers = Layers();
  layers[1].scratch_floats = 17;
  layers.push_back(layers[0]);
  layers[2].scratch_floats = 3;
  auto pool = StatePool::Create(layers, 3);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ(StatePool::ScratchBytes(layers), 4 * (32 + 16));
  EXPECT_EQ(pool->slot_bytes(), StatePool::SlotBytes(layers));
  EXPECT_EQ(pool->part(0).scratch, nullptr);
  EXPECT_EQ(pool->part(2).scratch - pool->part(1).scratch, 32);
  const auto of_slot = [&pool](int64_t slot) {
    std::vector<float> floats;
    for (const int64_t part : {1, 2}) {
      const StateView view = pool->part(part);
      const float* from = view.scratch + slot * view.scratch_stride;
      floats.insert(floats.end(), from, from + (part == 1 ? 17 : 3));
    }
    return floats;
  };
  const std::vector<float> nothing(20, 0.0F);
  const std::vector<float> something(20, 7.0F);
  const auto fill = [&] {
    for (int64_t slot = 0; slot < 3; ++slot) {
      EXPECT_EQ(pool->part(1).scratch_stride, 48);
      std::fill_n(pool->part(1).scratch + slot * 48, 48, 7.0F);
    }
  };
  for (int64_t slot = 0; slot < 3; ++slot) EXPECT_EQ(of_slot(slot), nothing);
  fill();
  const std::string bytes = Written(*pool, 1, 9);
  EXPECT_EQ(of_slot(1), something);
  ASSERT_TRUE(pool->ReadSlot(1, 9, bytes.data()).ok());
  EXPECT_EQ(of_slot(0), something);
  EXPECT_EQ(of_slot(1), nothing);
  EXPECT_EQ(of_slot(2), something);
  fill();
  ASSERT_TRUE(pool->CopySlot(0, 2, 9).ok());
  EXPECT_EQ(of_slot(0), something);
  EXPECT_EQ(of_slot(1), something);
  EXPECT_EQ(of_slot(2), nothing);
  fill();
  const auto kept = pool->Keep(0, 9);
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_TRUE(pool->TakeBack(1, *kept).ok());
  EXPECT_EQ(of_slot(0), something);
  EXPECT_EQ(of_slot(1), nothing);
  EXPECT_EQ(of_slot(2), something);
}

TEST(StatePoolTest, TheFingerprintTellsLayoutsApart) {
  const uint64_t layout = StatePool::Create(Layers(), 1)->layout().fingerprint();
  EXPECT_EQ(StatePool::Create(Layers(), 5)->layout().fingerprint(), layout);
  std::vector<StateSpec> other = Layers();
  const auto change = [&](int64_t StateSection::*member, int64_t value) {
    other[1] = Layers()[1];
    other[1].sections[1].*member = value;
    EXPECT_NE(SlotLayout(other).fingerprint(), layout);
  };
  change(&StateSection::parts, 1);
  change(&StateSection::granule_tokens, 4);
  change(&StateSection::granule_floats, 12);
  change(&StateSection::token_bytes, 8);
  change(&StateSection::lanes, 2);
  other[1] = Layers()[1];
  other[1].sections[1].grows = false;
  EXPECT_NE(SlotLayout(other).fingerprint(), layout);
  other[1] = Layers()[1];
  other[1].sections[1].name = "values";
  EXPECT_NE(SlotLayout(other).fingerprint(), layout);
  other[1] = Layers()[1];
  other[1].scratch_floats = 5;
  EXPECT_EQ(StatePool::Create(other, 1)->layout().fingerprint(), layout);
  std::swap(other[0], other[1]);
  EXPECT_NE(StatePool::Create(other, 1)->layout().fingerprint(), layout);
}

int64_t ResidentBytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

TEST(StatePoolTest, AGrowingStateTakesMemoryAtItsFirstTouch) {
  constexpr int64_t kFloats = int64_t{1} << 26;  // 256 MiB a slot
  StateSpec growing;
  growing.floats = kFloats;
  growing.sections = {{"keys", 0, kFloats, 1, 1, 64, 256, 1, true}};
  growing.floats_per_token = 64;
  const int64_t before = ResidentBytes();
  auto pool = StatePool::Create({growing}, 4);
  ASSERT_TRUE(pool.ok());
  for (int64_t slot = 0; slot < 4; ++slot) pool->part(0).base[slot * kFloats] = 1;
  ASSERT_TRUE(pool->CopySlot(0, 3, 10).ok());
  EXPECT_LT(ResidentBytes() - before, int64_t{512} << 20);
}

TEST(XxHash64Test, EqualsThePublishedAlgorithm) {
  EXPECT_EQ(XxHash64("", 0), 0xEF46DB3751D8E999U);
  EXPECT_EQ(XxHash64("a", 0), 0xD24EC4F1A98C6E5BU);
  EXPECT_EQ(XxHash64("abc", 0), 0x44BC2CF5AD770999U);
  EXPECT_EQ(XxHash64("Nobody inspects the spammish repetition", 0),  // lint: allow
            0xFBCEA83C8A378BF1U);
  EXPECT_EQ(XxHash64("abcdefghijklmnopqrstuvwxyz", 0), 0xCFE1F278FA89835CU);
  EXPECT_EQ(XxHash64("Nobody inspects the spammish repetition", 1),  // lint: allow
            0x43F425448D954DB6U);
}

TEST(XxHash64Test, EveryBitCounts) {
  std::string bytes(75, 'x');
  const uint64_t hash = XxHash64(bytes, 0);
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << i % 8));
    EXPECT_NE(XxHash64(bytes, 0), hash) << i;
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << i % 8));
  }
}

}  // namespace
}  // namespace aft
