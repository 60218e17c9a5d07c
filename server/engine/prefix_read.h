#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "model/api/sampling_params.h"
#include "server/scheduling/prefix_cache.h"

namespace aft::server {

// The room for a stream's outputs that is there from the start, so that decoding allocates nothing
// for a while.
inline constexpr int64_t kOutputsAtOnce = 1024;

struct TokenStream;

// What a stream whose text begins with its prompt, or with a context to score, has to do with the
// prefix cache.
struct PrefixRead {
  std::string salt;
  // Of a text to score: its first tokens, which alone take part as if they were a prompt. 0: it is
  // a generation.
  int64_t context = 0;

  // Once it has begun to read, and the cache has room for its prompt.
  PrefixCache::Node* text = nullptr;
  PrefixCache::Snapshot snapshot;    // that it goes on from; until its slot has it
  std::set<int64_t> cuts;            // where it leaves states, beyond its position
  std::vector<TokenStream*> joined;  // that wait for one of these
  std::vector<TokenId> outputs;
  bool reads = false;  // its prompt, not to its end yet

  // While it waits for another one's state.
  TokenStream* leader = nullptr;
  int64_t awaited = 0;      // the position of that
  bool has_waited = false;  // and the state was left
};

}  // namespace aft::server
