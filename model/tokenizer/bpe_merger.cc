#include "model/tokenizer/bpe_merger.h"

#include <algorithm>
#include <cstddef>
#include <functional>

namespace aft {

// Looks up the pair of `left` and its next, and queues it.
void BpeMerger::Rank(int32_t left) {
  Node& node = nodes_[static_cast<size_t>(left)];
  node.rank = -1;
  if (node.next < 0) return;
  const BpeMerges::Merge* merge = merges_.Find(node.id, nodes_[static_cast<size_t>(node.next)].id);
  if (merge == nullptr) return;
  node.rank = merge->rank;
  heap_.push_back(uint64_t{static_cast<uint32_t>(merge->rank)} << 32 | static_cast<uint32_t>(left));
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void BpeMerger::Append(absl::string_view piece, std::vector<int32_t>& ids) {
  const auto size = static_cast<int32_t>(piece.size());
  nodes_.resize(piece.size());
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(piece[static_cast<size_t>(i)]);
    nodes_[static_cast<size_t>(i)] = {merges_.byte_ids[byte], i - 1, i + 1 < size ? i + 1 : -1, -1};
  }
  for (int32_t i = 0; i + 1 < size; ++i) Rank(i);

  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t entry = heap_.back();
    heap_.pop_back();
    const auto left = static_cast<int32_t>(entry & 0xFFFFFFFF);
    Node& node = nodes_[static_cast<size_t>(left)];
    if (node.rank != static_cast<int32_t>(entry >> 32)) continue;
    Node& absorbed = nodes_[static_cast<size_t>(node.next)];
    node.id = merges_.Find(node.id, absorbed.id)->id;
    node.next = absorbed.next;
    absorbed.rank = -1;
    if (node.next >= 0) nodes_[static_cast<size_t>(node.next)].previous = left;
    Rank(left);
    if (node.previous >= 0) Rank(node.previous);
  }
  // The first node is never absorbed.
  for (int32_t i = 0; i >= 0; i = nodes_[static_cast<size_t>(i)].next) {
    ids.push_back(nodes_[static_cast<size_t>(i)].id);
  }
}

}  // namespace aft
