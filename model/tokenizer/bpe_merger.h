#ifndef AFT_MODEL_TOKENIZER_BPE_MERGER_H_
#define AFT_MODEL_TOKENIZER_BPE_MERGER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace aft {

// The vocabulary as merging needs it.
struct BpeMerges {
  struct Merge {
    int32_t rank;  // lower is merged first; unique
    int32_t id;    // of the merged token
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  const Merge* Find(int32_t left, int32_t right) const {
    const auto found = pairs.find(Key(left, right));
    return found == pairs.end() ? nullptr : &found->second;
  }

  std::array<int32_t, 256> byte_ids{};
  absl::flat_hash_map<uint64_t, Merge> pairs;  // by Key
};

// Merges one piece after another; holds the memory for it. Thread-compatible.
class BpeMerger {
 public:
  // `merges` must outlive this object.
  explicit BpeMerger(const BpeMerges& merges) : merges_(merges) {}

  // Appends the tokens of `piece` to `ids`. O(n log n).
  // REQUIRES: 0 < piece.size() < 2^31.
  void Append(absl::string_view piece, std::vector<int32_t>& ids);

 private:
  // A token of the piece; they form a list in the order of the text.
  struct Node {
    int32_t id;
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
    int32_t rank;      // of the merge with `next`; -1: there is none
  };

  void Rank(int32_t left);

  const BpeMerges& merges_;
  std::vector<Node> nodes_;
  // Min-heap of rank << 32 | left node. An entry is out of date when the node's rank is another.
  std::vector<uint64_t> heap_;
};

}  // namespace aft

#endif  // AFT_MODEL_TOKENIZER_BPE_MERGER_H_
