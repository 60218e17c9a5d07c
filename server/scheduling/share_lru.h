#pragma once

#include <cstdint>
#include <list>
#include <set>
#include <unordered_map>
#include <utility>

namespace aft::server {

// Items of several owners. When room is short, the owner whose items take the most loses the item
// that was used longest ago. So other owners cannot take what an owner has within its share of the
// room. Constant time, apart from a factor logarithmic in the number of owners. Thread-compatible.
template <typename Item>
class ShareLru {
 public:
  using Owner = uint64_t;

  // The place of an item, in one list at a time.
  struct Place {
    Owner owner = 0;
    int64_t bytes = 0;
    typename std::list<Item*>::iterator at;
  };

  // Adds the item as the one that was used last.
  Place Add(Item& item, Owner owner, int64_t bytes) {
    Share& share = shares_[owner];
    share.items.push_back(&item);
    Resize(owner, share, bytes);
    return {owner, bytes, std::prev(share.items.end())};
  }
  // REQUIRES: Add returned `place` here, and it was not removed since.
  void Remove(const Place& place) {
    Share& share = shares_.find(place.owner)->second;
    share.items.erase(place.at);
    Resize(place.owner, share, -place.bytes);
    if (share.items.empty()) shares_.erase(place.owner);
  }

  // The next item to lose; null: there is none.
  Item* Last() const {
    if (by_bytes_.empty()) return nullptr;
    return shares_.find(by_bytes_.rbegin()->second)->second.items.front();
  }

  int64_t bytes() const { return bytes_; }

 private:
  struct Share {
    std::list<Item*> items;  // the one used last is at the end
    int64_t bytes = 0;
  };

  void Resize(Owner owner, Share& share, int64_t more) {
    by_bytes_.erase({share.bytes, owner});
    share.bytes += more;
    bytes_ += more;
    if (!share.items.empty()) by_bytes_.emplace(share.bytes, owner);
  }

  std::unordered_map<Owner, Share> shares_;  // of owners that have items
  std::set<std::pair<int64_t, Owner>> by_bytes_;
  int64_t bytes_ = 0;
};

}  // namespace aft::server
