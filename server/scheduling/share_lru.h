#pragma once

#include <cstdint>
#include <list>
#include <set>
#include <unordered_map>
#include <utility>

namespace aft::server {

// Items of several owners, and which of them goes when room is short: of the owner whose items take
// the most, the one that was used longest ago. So what an owner has within its share of the room,
// others cannot take from it. Constant time but for a factor logarithmic in the number of owners.
// Thread-compatible.
template <typename Item>
class ShareLru {
 public:
  using Owner = uint64_t;

  // Where an item is; of one list at a time.
  struct Place {
    Owner owner = 0;
    int64_t bytes = 0;
    typename std::list<Item*>::iterator at;
  };

  // As the one that was used last.
  Place Add(Item& item, Owner owner, int64_t bytes) {
    Share& share = shares_[owner];
    share.items.push_back(&item);
    Resize(owner, share, bytes);
    return {owner, bytes, std::prev(share.items.end())};
  }
  // REQUIRES: Add returned it here, and it was not removed since.
  void Remove(const Place& place) {
    Share& share = shares_.find(place.owner)->second;
    share.items.erase(place.at);
    Resize(place.owner, share, -place.bytes);
    if (share.items.empty()) shares_.erase(place.owner);
  }

  // Null: there is none.
  Item* Last() const {
    if (by_bytes_.empty()) return nullptr;
    return shares_.find(by_bytes_.rbegin()->second)->second.items.front();
  }

  int64_t bytes() const { return bytes_; }

 private:
  struct Share {
    std::list<Item*> items;  // used last at the end
    int64_t bytes = 0;
  };

  void Resize(Owner owner, Share& share, int64_t more) {
    by_bytes_.erase({share.bytes, owner});
    share.bytes += more;
    bytes_ += more;
    if (!share.items.empty()) by_bytes_.emplace(share.bytes, owner);
  }

  std::unordered_map<Owner, Share> shares_;  // that have items
  std::set<std::pair<int64_t, Owner>> by_bytes_;
  int64_t bytes_ = 0;
};

}  // namespace aft::server
