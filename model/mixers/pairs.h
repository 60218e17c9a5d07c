#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "model/kernels/pairs/pairs.h"
#include "model/mixers/mixer.h"

// Common code of the mixers' EncodePairs.
namespace aft {

// A query and the keys that it sees.
struct PairQuery {
  int64_t t = 0;  // position in its sequence
  const float* packed = nullptr;
  const float* keys = nullptr;  // packed row of the sequence's first key
  int64_t stride = 0;           // floats between rows of keys
  kernels::SeenKeys seen;
  float* biases = nullptr;  // those of `seen`; mix may add to them
  float* scores = nullptr;  // [seen.count]; workspace of mix
  float* y = nullptr;       // [hid]
};

// The floats of scratch that ForEachPairQuery needs for up to `keys` keys.
inline int64_t PairScratchFloats(int64_t keys) { return 3 * keys; }

// Calls mix(query) for every query that sees a key, and writes zeros for the others. sees(t, key)
// says whether the mixer lets query t see the key, apart from the masks.
template <typename Sees, typename Mix>
void ForEachPairQuery(PackedIn queries, PackedIn keys, const SequenceBatch& batch, int64_t hid,
                      MixerOut out, const Workspace& workspace, const Sees& sees, const Mix& mix) {
  const int64_t* const key_offset = batch.key_offset != nullptr ? batch.key_offset : batch.offset;
  const int64_t all = batch.offset[batch.sequences];
  if (all == 0) return;
  const auto run = [&](int64_t begin, int64_t end, int thread) {
    float* const scratch = workspace.scratch + thread * workspace.scratch_stride;
    int64_t i = 0;
    for (int64_t row = begin; row < end; ++row) {
      while (batch.offset[i + 1] <= row) ++i;
      const int64_t first = key_offset[i];
      const int64_t count = key_offset[i + 1] - first;
      PairQuery query;
      query.t = row - batch.offset[i];
      const float* const pairs = batch.pairs == nullptr || batch.pairs[i] == nullptr
                                     ? nullptr
                                     : batch.pairs[i] + query.t * count;
      auto* const rows = reinterpret_cast<int32_t*>(scratch);
      query.biases = scratch + count;
      query.scores = scratch + 2 * count;
      for (int64_t key = 0; key < count; ++key) {
        const float of_key = batch.mask == nullptr ? 0.0F : batch.mask[first + key];
        const float of_pair = pairs == nullptr ? 0.0F : pairs[key];
        if (of_key <= kMaskedBelow || of_pair <= kMaskedBelow || !sees(query.t, key)) continue;
        rows[query.seen.count] = static_cast<int32_t>(key);
        query.biases[query.seen.count++] = of_key + of_pair;
      }
      query.seen.rows = rows;
      query.seen.biases = query.biases;
      query.packed = queries.data + row * queries.stride;
      query.keys = keys.data + first * keys.stride;
      query.stride = keys.stride;
      query.y = out.data + row * out.stride;
      if (query.seen.count == 0) {
        std::fill_n(query.y, hid, 0.0F);
      } else {
        mix(query);
      }
    }
  };
  constexpr int64_t kWorkPerThread = 100'000;  // pairs of a key and a channel: about 8 us
  const int64_t work = hid * std::max<int64_t>(key_offset[batch.sequences], 1);
  workspace.executor->For(all, kWorkPerThread * batch.sequences / work + 1, run);
}

}  // namespace aft
