#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft::server {

// Looks for stop strings in a stream of bytes, across the borders of its pieces. Bytes that may be
// the start of a stop string are held back until that is decided.
//
// The match that is complete first wins. If several matches end at the same byte, the longest one
// wins. So the result depends only on the bytes, and not on where the stream was split.
//
// Cost: O(1) per byte, amortised, however many strings there are (Aho-Corasick). A copy shares the
// tables that were made of the strings. Thread-compatible.
class StopMatcher {
 public:
  // `include_match`: the output ends after the match instead of before it. REQUIRES: no string is
  // empty.
  StopMatcher(std::vector<std::string> strings, bool include_match);

  // Appends to `out` the bytes that are decided. Returns true when a stop string is complete. Then
  // the output has ended, the rest of `bytes` is dropped, and nothing may be appended any more. If
  // `counts` is false, stop strings that end in these bytes are ignored.
  bool Append(absl::string_view bytes, std::string& out, bool counts = true);

  // The stream has ended without a match: the held bytes are output after all.
  void Flush(std::string& out);

  // The stop string that was found; empty before that.
  const std::string& match() const { return match_; }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr uint32_t kRoot = 0;

  // The first bytes of a string. The root stands for no bytes.
  struct Node {
    uint32_t text = 0;   // a string that begins with these bytes
    uint32_t depth = 0;  // the number of bytes
    uint32_t fail = 0;   // the longest proper suffix of these bytes that is a node
    // A list of the nodes that are one byte longer; kRoot ends it.
    uint32_t child = 0;
    uint32_t sibling = 0;
    char byte = 0;          // the last byte
    int32_t match = kNone;  // the longest string that the bytes end with
  };
  struct Trie {
    explicit Trie(std::vector<std::string> strings);

    uint32_t Child(uint32_t node, char byte) const;
    void Add(uint32_t text);
    void Link();
    // The longest node that is a suffix of the bytes of `node` and `byte`.
    uint32_t Next(uint32_t node, char byte) const;
    absl::string_view Bytes(uint32_t node) const;

    std::vector<std::string> texts;
    std::vector<Node> nodes{1};
    std::array<uint32_t, 256> first{};  // children of the root, by byte
  };

  // Appends the first `count` of the bytes of `node` and `byte`.
  void Emit(uint32_t node, char byte, size_t count, std::string& out) const;

  std::shared_ptr<const Trie> trie_;  // null: there are no strings
  bool include_match_;
  uint32_t held_ = kRoot;  // its bytes are held back
  std::string match_;
};

}  // namespace aft::server
