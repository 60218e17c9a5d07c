#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/api/model_runner.h"
#include "model/api/sampling_params.h"
#include "server/scheduling/share_lru.h"

namespace aft::server {

// Keeps texts, and the states at places in them, as pure logic: no thread, lock or clock. Only
// requests of one client with the same salt share texts. For each client and salt there is a
// compressed trie over token ids, whose nodes may carry a kept state.
//
// Kept states, nodes and their tokens together take at most `capacity` bytes. When room is short, a
// segmented LRU (Karedla, Love, Wherry: "Caching Strategies to Improve Disk System Performance",
// 1994) decides what is evicted, from three lists:
//   texts       ends of texts without a kept state; evicted first if they take over an eighth of it
//   probation   kept states that were not used yet; evicted next
//   protected   kept states that were used; what exceeds five eighths of it returns to probation
// Texts that are held, at most an eighth of the capacity, are not evicted. So texts that come only
// once, however many, evict nothing that is used again. In each list the client that takes the most
// bytes loses first (ShareLru), so that no client can evict what others have within their share. An
// evicted state is remembered as long as its text.
//
// A call walks along the text, and takes time in proportion to its length and to the logarithm of
// the number of clients. Thread-compatible.
class PrefixCache {
 public:
  // The shortest prefix whose state is worth keeping, and the least distance between two of one
  // text.
  static constexpr int64_t kMinTokens = 32;
  // The bytes that a node is charged for in addition to its tokens.
  static constexpr int64_t kNodeBytes = 384;

  // A place in a text.
  class Node;

  struct Key {
    absl::string_view client;
    absl::string_view salt;
  };

  // `capacity`: bytes; 0 keeps nothing.
  explicit PrefixCache(int64_t capacity);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  // The result of looking up a text.
  struct Found {
    int64_t known = 0;     // the number of first tokens that an earlier text has too
    int64_t position = 0;  // the number of tokens that the kept state has consumed
    std::shared_ptr<const KeptState> kept;  // the last along the text up to `limit`; null: none
    bool evicted = false;                   // a kept state up to `limit` was evicted
  };
  Found Find(const Key& key, absl::Span<const TokenId> text, int64_t limit);

  // Records that the kept state of the last Find is used. REQUIRES: it found one; nothing was
  // called since.
  void Use();

  // Adds the text, and holds it until LetGo. Returns null if all held texts would take more than an
  // eighth of the capacity.
  Node* Hold(const Key& key, absl::Span<const TokenId> text);
  // REQUIRES: Hold has returned `text` more often than LetGo was called with it.
  void LetGo(Node* text);

  // The number of first tokens that a held text shares with the text of the last Find. REQUIRES:
  // since then only Use was called.
  int64_t Shared(const Node* text) const;

  // Copies the state. May return null; then none is kept.
  using Take = absl::FunctionRef<std::shared_ptr<const KeptState>()>;

  // Keeps the state at `position` of a held text, unless there is one less than kMinTokens before
  // it, or no room. `used`: treats it as used already. REQUIRES: 0 < position <= the text's tokens.
  void Keep(Node* text, int64_t position, bool used, Take take);
  // Keeps the state after the text and `more`, and adds these tokens to the known texts.
  void KeepBehind(Node* text, absl::Span<const TokenId> more, Take take);

  // Whether a state of this size could be kept at all.
  bool Fits(int64_t kept_bytes) const;

  int64_t bytes() const { return bytes_; }
  int64_t states() const { return static_cast<int64_t>(positions_.size()); }
  int64_t evictions() const { return evictions_; }
  // The largest position of a kept state; 0 if there is none.
  int64_t deepest() const { return positions_.empty() ? 0 : *positions_.rbegin(); }

 private:
  enum class List { kNone, kTexts, kProbation, kProtected };

  ShareLru<Node>* lru(List list);
  static std::string Name(const Key& key);
  Node* Root(const std::string& name) const;

  bool MakeRoom(int64_t bytes);
  bool EvictOne();
  void Evict(Node& node);
  void Erase(Node& leaf);

  Node& Make(Node* parent, absl::Span<const TokenId> label);
  Node& Split(Node& node, int64_t position);
  Node& Insert(Node& from, absl::Span<const TokenId> text);
  void Attach(Node& node, bool used, Take take);
  void Protect(Node& node);
  // Moves the node to that list, as the most recently used one.
  void Enlist(Node& node, List list);
  void Settle(Node& node);
  void Pin(Node& end);
  void Unpin(Node& end);

  const int64_t capacity_;
  int64_t bytes_ = 0;
  int64_t held_bytes_ = 0;  // of nodes on the way to held texts
  int64_t evictions_ = 0;
  std::list<Node> nodes_;  // all nodes: a trie may be too deep to be destroyed by recursion
  std::unordered_map<std::string, Node*> roots_;
  std::multiset<int64_t> positions_;  // of kept states
  ShareLru<Node> texts_;
  ShareLru<Node> probation_;
  ShareLru<Node> protected_;

  // The last Find set these.
  uint64_t finds_ = 0;
  Node* found_ = nullptr;
};

}  // namespace aft::server
