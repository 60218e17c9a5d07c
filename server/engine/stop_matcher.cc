#include "server/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace aft::server {

StopMatcher::Trie::Trie(std::vector<std::string> strings) : texts(std::move(strings)) {
  size_t most = nodes.size();
  for (const std::string& text : texts) most += text.size();
  nodes.reserve(most);
  for (uint32_t text = 0; text < texts.size(); ++text) Add(text);
  Link();
}

void StopMatcher::Trie::Add(uint32_t text) {
  uint32_t node = kRoot;
  for (const char byte : texts[text]) {
    uint32_t next = Child(node, byte);
    if (next == kRoot) {
      next = static_cast<uint32_t>(nodes.size());
      nodes.push_back({.text = text,
                       .depth = nodes[node].depth + 1,
                       .sibling = std::exchange(nodes[node].child, next),
                       .byte = byte});
      if (node == kRoot) first[static_cast<unsigned char>(byte)] = next;
    }
    node = next;
  }
  nodes[node].match = static_cast<int32_t>(text);
}

// The loop visits shorter nodes before longer ones.
void StopMatcher::Trie::Link() {
  std::vector<uint32_t> queue = {kRoot};
  for (size_t i = 0; i < queue.size(); ++i) {
    const uint32_t node = queue[i];
    for (uint32_t child = nodes[node].child; child != kRoot; child = nodes[child].sibling) {
      Node& added = nodes[child];
      if (node != kRoot) added.fail = Next(nodes[node].fail, added.byte);
      if (added.match == kNone) added.match = nodes[added.fail].match;
      queue.push_back(child);
    }
  }
}

uint32_t StopMatcher::Trie::Child(uint32_t node, char byte) const {
  if (node == kRoot) return first[static_cast<unsigned char>(byte)];
  uint32_t child = nodes[node].child;
  while (child != kRoot && nodes[child].byte != byte) child = nodes[child].sibling;
  return child;
}

uint32_t StopMatcher::Trie::Next(uint32_t node, char byte) const {
  uint32_t next = Child(node, byte);
  while (next == kRoot && node != kRoot) {
    node = nodes[node].fail;
    next = Child(node, byte);
  }
  return next;
}

absl::string_view StopMatcher::Trie::Bytes(uint32_t node) const {
  return absl::string_view(texts[nodes[node].text]).substr(0, nodes[node].depth);
}

StopMatcher::StopMatcher(std::vector<std::string> strings, bool include_match)
    : include_match_(include_match) {
  if (!strings.empty()) trie_ = std::make_shared<const Trie>(std::move(strings));
}

bool StopMatcher::Append(absl::string_view bytes, std::string& out, bool counts) {
  if (trie_ == nullptr) {
    out.append(bytes.data(), bytes.size());
    return false;
  }
  const Trie& trie = *trie_;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (held_ == kRoot) {  // the usual case: copy up to a byte that a string begins with
      const size_t begin = i;
      while (i < bytes.size() && trie.Next(kRoot, bytes[i]) == kRoot) ++i;
      out.append(bytes.data() + begin, i - begin);
      if (i == bytes.size()) break;
    }
    const char byte = bytes[i];
    const size_t pending = trie.nodes[held_].depth + 1;
    uint32_t next = trie.Next(held_, byte);
    if (const int32_t match = trie.nodes[next].match; counts && match != kNone) {
      match_ = trie.texts[static_cast<size_t>(match)];
      Emit(held_, byte, pending - (include_match_ ? 0 : match_.size()), out);
      held_ = kRoot;
      return true;
    }
    // A whole string that does not count is held back only as the start of a longer one.
    while (next != kRoot && trie.nodes[next].child == kRoot) next = trie.nodes[next].fail;
    Emit(held_, byte, pending - trie.nodes[next].depth, out);
    held_ = next;
  }
  return false;
}

void StopMatcher::Emit(uint32_t node, char byte, size_t count, std::string& out) const {
  const absl::string_view held = trie_->Bytes(node);
  out.append(held.data(), std::min(count, held.size()));
  if (count > held.size()) out.push_back(byte);
}

void StopMatcher::Flush(std::string& out) {
  if (trie_ == nullptr) return;
  const absl::string_view held = trie_->Bytes(std::exchange(held_, kRoot));
  out.append(held.data(), held.size());
}

}  // namespace aft::server
