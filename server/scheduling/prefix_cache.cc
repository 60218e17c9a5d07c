#include "server/scheduling/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace aft::server {
namespace {

int64_t LabelBytes(int64_t tokens) { return tokens * static_cast<int64_t>(sizeof(TokenId)); }

// The bytes of a partition's name, which is stored twice.
int64_t NameBytes(const std::string& name) { return 2 * static_cast<int64_t>(name.size()); }

int64_t KeptBytes(const KeptState& kept) {
  return kept.bytes() + static_cast<int64_t>(sizeof(KeptState));
}

}  // namespace

class PrefixCache::Node {
 public:
  int64_t tokens() const { return static_cast<int64_t>(label.size()); }
  // The bytes that are charged for the node.
  int64_t text_bytes() const { return kNodeBytes + LabelBytes(tokens()); }
  int64_t bytes() const { return text_bytes() + (kept == nullptr ? 0 : KeptBytes(*kept)); }

  std::list<Node>::iterator self;
  Node* parent = nullptr;         // null: a root
  std::vector<TokenId> label;     // from the parent to here
  int64_t position = 0;           // number of tokens from the root
  std::map<TokenId, Node*> next;  // by the first token of their labels
  uint64_t owner = 0;             // the client, for ShareLru
  std::string name;               // of the partition, in its root

  std::shared_ptr<const KeptState> kept;
  bool evicted = false;  // it had a kept state
  int pins = 0;          // the number of held texts through here
  List list = List::kNone;
  ShareLru<Node>::Place place;

  // Set by the last Find that came here.
  uint64_t found_by = 0;
  int64_t shared = 0;
};

PrefixCache::PrefixCache(int64_t capacity) : capacity_(capacity) {}
PrefixCache::~PrefixCache() = default;

ShareLru<PrefixCache::Node>* PrefixCache::lru(List list) {
  switch (list) {
    case List::kTexts:
      return &texts_;
    case List::kProbation:
      return &probation_;
    case List::kProtected:
      return &protected_;
    case List::kNone:
      break;
  }
  return nullptr;
}

// Different keys have different names, whatever bytes they have.
std::string PrefixCache::Name(const Key& key) {
  return absl::StrCat(key.client.size(), ":", key.client, key.salt);
}

PrefixCache::Node* PrefixCache::Root(const std::string& name) const {
  const auto root = roots_.find(name);
  return root == roots_.end() ? nullptr : root->second;
}

PrefixCache::Found PrefixCache::Find(const Key& key, absl::Span<const TokenId> text,
                                     int64_t limit) {
  Found found;
  ++finds_;
  found_ = nullptr;
  const auto length = static_cast<int64_t>(text.size());
  Node* node = Root(Name(key));
  while (node != nullptr) {
    if (node->parent != nullptr) {
      const auto begin = text.begin() + (node->position - node->tokens());
      const auto end = std::mismatch(node->label.begin(), node->label.end(), begin, text.end());
      found.known = end.second - text.begin();
    }
    node->found_by = finds_;
    node->shared = found.known;
    if (found.known < node->position) break;
    if (node->position <= limit && node->kept != nullptr) {
      found_ = node;
      found.position = node->position;
      found.kept = node->kept;
    }
    found.evicted = found.evicted || (node->position <= limit && node->evicted);
    if (found.known == length) break;
    const auto next = node->next.find(text[static_cast<size_t>(found.known)]);
    node = next == node->next.end() ? nullptr : next->second;
  }
  return found;
}

void PrefixCache::Use() {
  AFT_CHECK(found_ != nullptr);
  Protect(*found_);
}

void PrefixCache::Protect(Node& node) {
  Enlist(node, List::kProtected);
  while (protected_.bytes() > capacity_ / 8 * 5) Enlist(*protected_.Last(), List::kProbation);
}

PrefixCache::Node* PrefixCache::Hold(const Key& key, absl::Span<const TokenId> text) {
  std::string name = Name(key);
  const int64_t most =
      3 * kNodeBytes + NameBytes(name) + LabelBytes(static_cast<int64_t>(text.size()));
  if (most > capacity_ / 8 || !MakeRoom(most)) return nullptr;
  Node* root = Root(name);
  if (root == nullptr) {
    root = &Make(nullptr, {});
    root->owner = std::hash<std::string>()(std::string(key.client));
    bytes_ += NameBytes(name);
    root->name = name;
    roots_.emplace(std::move(name), root);
  }
  Node& end = Insert(*root, text);
  Pin(end);
  if (held_bytes_ <= capacity_ / 8) return &end;
  Unpin(end);
  return nullptr;
}

void PrefixCache::LetGo(Node* text) {
  AFT_CHECK(text->pins > 0);
  Unpin(*text);
}

// Keeps the node, and those on the way to it, from being evicted.
void PrefixCache::Pin(Node& end) {
  for (Node* node = &end; node != nullptr; node = node->parent) {
    if (node->pins++ == 0) held_bytes_ += node->text_bytes();
  }
  Settle(end);
}

void PrefixCache::Unpin(Node& end) {
  for (Node* node = &end; node != nullptr; node = node->parent) {
    if (--node->pins == 0) held_bytes_ -= node->text_bytes();
  }
  Settle(end);
}

int64_t PrefixCache::Shared(const Node* text) const {
  while (text != nullptr && text->found_by != finds_) text = text->parent;
  return text == nullptr ? 0 : text->shared;
}

void PrefixCache::Keep(Node* text, int64_t position, bool used, Take take) {
  AFT_CHECK(position > 0 && position <= text->position);
  // A split may make a node. Making room evicts nothing on the way to a text that is held.
  if (!MakeRoom(kNodeBytes)) return;
  while (text->parent->position >= position) text = text->parent;
  Attach(Split(*text, position), used, take);
}

void PrefixCache::KeepBehind(Node* text, absl::Span<const TokenId> more, Take take) {
  const int64_t most = 2 * kNodeBytes + LabelBytes(static_cast<int64_t>(more.size()));
  if (most > capacity_ / 8 || !MakeRoom(most)) return;
  Attach(Insert(*text, more), /*used=*/false, take);
}

bool PrefixCache::Fits(int64_t kept_bytes) const { return kept_bytes <= capacity_ / 2; }

// False: nothing that is left may be evicted.
bool PrefixCache::MakeRoom(int64_t bytes) {
  while (bytes_ + bytes > capacity_) {
    if (!EvictOne()) return false;
  }
  return true;
}

bool PrefixCache::EvictOne() {
  Node* const text = texts_.Last();
  if (text != nullptr && (texts_.bytes() > capacity_ / 8 || probation_.Last() == nullptr)) {
    Erase(*text);
    return true;
  }
  Node* const node = probation_.Last() != nullptr ? probation_.Last() : protected_.Last();
  if (node == nullptr) return false;
  ++evictions_;
  Evict(*node);
  return true;
}

// Evicts the node's kept state.
void PrefixCache::Evict(Node& node) {
  bytes_ -= KeptBytes(*node.kept);
  positions_.erase(positions_.find(node.position));
  Enlist(node, List::kNone);
  node.kept = nullptr;
  node.evicted = true;
  Settle(node);
}

void PrefixCache::Erase(Node& leaf) {
  Enlist(leaf, List::kNone);
  Node* const parent = leaf.parent;
  bytes_ -= leaf.bytes();
  if (parent != nullptr) {
    parent->next.erase(leaf.label.front());
  } else {
    bytes_ -= NameBytes(leaf.name);
    roots_.erase(leaf.name);
  }
  nodes_.erase(leaf.self);
  if (parent != nullptr) Settle(*parent);
}

PrefixCache::Node& PrefixCache::Make(Node* parent, absl::Span<const TokenId> label) {
  Node& node = nodes_.emplace_back();
  node.self = std::prev(nodes_.end());
  node.parent = parent;
  node.label.assign(label.begin(), label.end());
  node.position = node.tokens();
  if (parent != nullptr) {
    node.position += parent->position;
    node.owner = parent->owner;
    parent->next[label.front()] = &node;
  }
  bytes_ += node.bytes();
  return node;
}

// Returns the node at `position` on the way to `node`, after its parent; a new one is on no list.
PrefixCache::Node& PrefixCache::Split(Node& node, int64_t position) {
  if (position == node.position) return node;
  const List list = node.list;
  Enlist(node, List::kNone);  // its size changes
  const absl::Span<const TokenId> label(node.label);
  const auto above = static_cast<size_t>(position - (node.position - node.tokens()));
  Node& upper = Make(node.parent, label.first(above));
  bytes_ -= LabelBytes(static_cast<int64_t>(above));
  node.label =
      std::vector<TokenId>(label.begin() + static_cast<std::ptrdiff_t>(above), label.end());
  node.parent = &upper;
  upper.next[node.label.front()] = &node;
  upper.pins = node.pins;
  if (node.pins > 0) held_bytes_ += kNodeBytes;
  Enlist(node, list);
  return upper;
}

// Returns the node after `from` and `text`; a new one is on no list.
PrefixCache::Node& PrefixCache::Insert(Node& from, absl::Span<const TokenId> text) {
  Node* node = &from;
  while (!text.empty()) {
    const auto next = node->next.find(text.front());
    if (next == node->next.end()) {
      Node& added = Make(node, text);
      Settle(*node);  // it is not a leaf any more
      return added;
    }
    Node& child = *next->second;
    const auto end =
        std::mismatch(child.label.begin(), child.label.end(), text.begin(), text.end());
    const int64_t same = end.second - text.begin();
    node = &Split(child, child.position - child.tokens() + same);
    text.remove_prefix(static_cast<size_t>(same));
  }
  return *node;
}

void PrefixCache::Attach(Node& node, bool used, Take take) {
  Pin(node);  // it stays while room is made
  const Node* before = &node;
  while (before != nullptr && before->kept == nullptr) before = before->parent;
  std::shared_ptr<const KeptState> kept;
  if (before == nullptr || node.position - before->position >= kMinTokens) kept = take();
  if (kept != nullptr) {
    const int64_t bytes = KeptBytes(*kept);
    if (Fits(bytes) && MakeRoom(bytes)) {
      node.kept = std::move(kept);
      node.evicted = false;
      bytes_ += bytes;
      positions_.insert(node.position);
      Enlist(node, List::kProbation);
      if (used) Protect(node);
    }
  }
  Unpin(node);
}

void PrefixCache::Enlist(Node& node, List list) {
  if (ShareLru<Node>* const from = lru(node.list)) from->Remove(node.place);
  node.list = list;
  if (ShareLru<Node>* const to = lru(list)) node.place = to->Add(node, node.owner, node.bytes());
}

// Lets a node without a kept state be evicted, if it is a leaf and no text through it is held.
void PrefixCache::Settle(Node& node) {
  if (node.kept != nullptr) return;
  const bool may_go = node.next.empty() && node.pins == 0;
  if (!may_go) return Enlist(node, List::kNone);
  if (node.parent == nullptr) return Erase(node);
  Enlist(node, List::kTexts);
}

}  // namespace aft::server
