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

// What is known of texts, and states that were kept at places in them, as pure logic: no thread,
// lock or clock. Texts are shared between requests of one client with one salt: a partition. Each
// partition is a compressed trie over token ids whose nodes may carry a snapshot.
//
// All of it, snapshots, nodes and their tokens, takes at most `capacity` bytes. What has to go when
// room is short, in the manner of a segmented LRU (Karedla, Love, Wherry: "Caching Strategies to
// Improve Disk System Performance", 1994), is on one of three lists:
//   texts       ends of texts without a snapshot; they go first beyond an eighth of the capacity
//   probation   snapshots that nobody has used yet; they go next
//   protected   those that were used; beyond five eighths of the capacity they return to probation
// Texts that are held, at most an eighth of the capacity, do not go. So what is seen once, however
// much of it comes, takes nothing from what is used again. Within a list the client that takes the
// most of it gives first (ShareLru), so that none can take the place of others. A snapshot that had
// to go is remembered as long as its text.
//
// Costs: a walk along the text, and a logarithm of the number of clients. Thread-compatible.
class PrefixCache {
 public:
  // The shortest prefix that is worth a snapshot, and the least distance between two of one text.
  static constexpr int64_t kMinTokens = 32;
  // What a node is charged for beside its tokens.
  static constexpr int64_t kNodeBytes = 384;

  using Snapshot = std::shared_ptr<const KeptState>;

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

  // What is known of a text.
  struct Found {
    int64_t known = 0;     // of its first tokens: some text that came before begins with them
    int64_t position = 0;  // of the snapshot: tokens that it has consumed
    Snapshot snapshot;     // the last one on the way, at most at `limit`; null: there is none
    bool evicted = false;  // there was one, up to `limit`
  };
  Found Find(const Key& key, absl::Span<const TokenId> text, int64_t limit);

  // The snapshot that Find found last is used. REQUIRES: it found one; nothing was called since.
  void Use();

  // The text is known from now on, and stays until it is let go. Null: all texts that are held
  // would take more than an eighth of the capacity.
  Node* Hold(const Key& key, absl::Span<const TokenId> text);
  // REQUIRES: Hold gave it, and it was not let go as often as it was held.
  void LetGo(Node* text);

  // Tokens that a text that is held shares with the one that Find was asked for last. REQUIRES:
  // nothing else but Use was called since.
  int64_t Shared(const Node* text) const;

  // The snapshot that is to be kept; null: there is none after all.
  using Take = absl::FunctionRef<Snapshot()>;

  // Keeps the state at `position` of a text that is held, unless there is one less than kMinTokens
  // before it, or no room. `used`: as if it had been used already. REQUIRES: 0 < position <= the
  // text's tokens.
  void Keep(Node* text, int64_t position, bool used, Take take);
  // The same behind the text and `more`, which are known from now on.
  void KeepBehind(Node* text, absl::Span<const TokenId> more, Take take);

  // Whether a snapshot of that size would be kept at all.
  bool Fits(int64_t snapshot_bytes) const;

  int64_t capacity() const { return capacity_; }
  int64_t bytes() const { return bytes_; }
  int64_t snapshots() const { return static_cast<int64_t>(positions_.size()); }
  int64_t evictions() const { return evictions_; }
  // The largest position of a snapshot; 0: there is none.
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
  // Puts the node on the list that it belongs to, as used last.
  void Enlist(Node& node, List list);
  void Settle(Node& node);
  void Pin(Node& end);
  void Unpin(Node& end);

  const int64_t capacity_;
  int64_t bytes_ = 0;
  int64_t held_bytes_ = 0;  // of nodes on the way to texts that are held
  int64_t evictions_ = 0;
  std::list<Node> nodes_;  // all of them: a trie may be too deep to be destroyed by recursion
  std::unordered_map<std::string, Node*> roots_;
  std::multiset<int64_t> positions_;  // of snapshots
  ShareLru<Node> texts_;
  ShareLru<Node> probation_;
  ShareLru<Node> protected_;

  // Of the last Find.
  uint64_t finds_ = 0;
  Node* found_ = nullptr;
};

}  // namespace aft::server
