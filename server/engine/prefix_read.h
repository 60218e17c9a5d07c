#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "model/api/sampling_params.h"
#include "server/scheduling/prefix_cache.h"

namespace aft::server {

// The room for a stream's outputs that is reserved at the start, so that decoding allocates nothing
// for a while.
inline constexpr int64_t kOutputsAtOnce = 1024;

struct TokenStream;

// The prefix cache's data of a stream whose text begins with its prompt, or with a context to
// score.
struct PrefixRead {
  std::string salt;
  // In a text to score, this is the number of its first tokens, which alone take part, as if they
  // were a prompt. 0: the stream is a generation.
  int64_t context = 0;
  // If the text begins from a tuned state, this is its prompt with a token in front that stands for
  // that state, until the stream begins. So places in the text are positions of its sequence, and
  // texts with different initial states have nothing in common.
  std::vector<TokenId> marked;

  // Set once the stream has begun to read, if the cache has room for its prompt.
  PrefixCache::Node* text = nullptr;
  std::shared_ptr<const KeptState> kept;  // to continue from, until its slot has it
  std::set<int64_t> cuts;                 // positions ahead where it leaves states
  std::vector<TokenStream*> joined;       // streams that wait for one of these
  std::vector<TokenId> outputs;
  bool reads = false;  // it still reads its prompt

  // Used while the stream waits for the state of another one.
  TokenStream* leader = nullptr;
  int64_t awaited = 0;      // the position of that state
  int32_t held_back = 0;    // the streams that wait with it: itself and its followers
  bool has_waited = false;  // the awaited state was left
};

}  // namespace aft::server
