#include "server/engine/prefix_reads.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "model/api/snapshot_bytes.h"
#include "server/engine/token_stream.h"

namespace aft::server {
namespace {

static_assert(static_cast<int>(CacheMiss::kCold) == static_cast<int>(PrefixMiss::kCold) + 1 &&
              static_cast<int>(CacheMiss::kEvicted) == static_cast<int>(PrefixMiss::kEvicted) + 1);

constexpr int64_t kMinTokens = PrefixCache::kMinTokens;

// Longer answers leave no state, because the memory for their token ids is part of no budget.
constexpr size_t kMaxOutputs = 65'536;

// Where the prompt of a stream ends, or the context of a text to score.
int64_t PromptEnd(const TokenStream& stream) {
  return stream.prefix->context > 0 ? stream.prefix->context : stream.prompt_end();
}

// The longest prefix that a stream can continue from: it has to read at least one token. A group
// reads one more, before it is forked.
int64_t MostKept(const TokenStream& stream) {
  return PromptEnd(stream) - (stream.group_size() > 1 ? 2 : 1);
}

// The part of the text that the cache may know. REQUIRES: none of it was read.
absl::Span<const TokenId> PromptOf(const TokenStream& stream) {
  const std::vector<TokenId>& marked = stream.prefix->marked;
  const absl::Span<const TokenId> text = marked.empty() ? stream.prompt() : marked;
  const int64_t context = stream.prefix->context;
  return context > 0 ? text.first(static_cast<size_t>(context)) : text;
}

PrefixCache::Key KeyOf(const TokenStream& stream) {
  return {.client = static_cast<const Sequence&>(stream).client(), .salt = stream.prefix->salt};
}

// Tells `read` that the text begins from a tuned state, if it does.
void Mark(const SequenceState* initial, const std::vector<TokenId>& text, PrefixRead& read) {
  if (initial == nullptr) return;
  read.marked.reserve(text.size() + 1);
  read.marked.push_back(kNoToken - initial->initial);  // is no id, and differs from state to state
  read.marked.insert(read.marked.end(), text.begin(), text.end());
  if (read.context > 0) ++read.context;
}

// Whether the text continues another one, so that its own tokens do not say what it is.
bool Continues(const TurnRequest& request) {
  return request.previous != nullptr && request.previous->initial == 0;
}

size_t ClassOf(const RequestHeader& request) { return static_cast<size_t>(request.service_class); }

}  // namespace

PrefixReads::PrefixReads(const Options& options, const ModelInfo& info,
                         ContinuousScheduler& scheduler, ModelRunner& runner, ModelMetrics& metrics)
    : options_(options),
      info_(info),
      scheduler_(scheduler),
      runner_(runner),
      metrics_(metrics),
      cache_(options.bytes) {
  metrics_.prefix_limit.Set(static_cast<double>(options.bytes));
}

std::unique_ptr<PrefixRead> PrefixReads::Make(const GenerationRequest& request) const {
  if (options_.bytes == 0 || Continues(request)) return nullptr;
  if (request.prompt_scores) return nullptr;  // the logits of every token are needed
  // A resumed stream of such a model reads all of its text as if it had generated it.
  if (info_.generated_differ && request.resumed > 0) return nullptr;
  auto read = std::make_unique<PrefixRead>();
  read->salt = request.cache_salt;
  Mark(request.previous.get(), request.prompt, *read);
  read->outputs.reserve(
      static_cast<size_t>(std::min<int64_t>(request.stop.max_tokens, kOutputsAtOnce)));
  return read;
}

std::unique_ptr<PrefixRead> PrefixReads::Make(const ScoringRequest& request) const {
  if (options_.bytes == 0 || request.context == 0) return nullptr;
  auto read = std::make_unique<PrefixRead>();
  read->salt = request.cache_salt;
  read->context = request.context;
  Mark(request.previous.get(), request.text, *read);
  return read;
}

void PrefixReads::Attach(std::unique_ptr<PrefixRead> read, TokenStream& stream) const {
  if (read == nullptr || stream.nothing_to_do()) return;
  stream.prefix = std::move(read);
  int64_t kept = deepest_.load(std::memory_order_relaxed);
  if (stream.prefix->context > 0) kept = std::min(kept, MostKept(stream));
  stream.least_unread = std::max<int64_t>(stream.tokens - kept, 1);
}

// Whether the cache has room for a kept state there at all.
bool PrefixReads::Fits(int64_t position) const {
  return cache_.Fits(MaxSnapshotBytes(info_, position));
}

bool PrefixReads::MayStart(TokenStream& stream) {
  if (stream.prefix == nullptr) return true;
  const PrefixCache::Found found = cache_.Find(KeyOf(stream), PromptOf(stream), MostKept(stream));
  int64_t position = 0;
  if (TokenStream* const leader = FindLeader(stream, found, position); leader != nullptr) {
    Join(stream, *leader, position);
    return false;
  }
  Begin(stream, found);
  return true;
}

// The reader that will read most of what this stream would read too, up to `position`; null: none.
TokenStream* PrefixReads::FindLeader(const TokenStream& stream, const PrefixCache::Found& found,
                                     int64_t& position) const {
  // It has waited before, in vain: the state that was left has been evicted.
  if (stream.prefix->has_waited && found.kept == nullptr) return nullptr;
  TokenStream* best = nullptr;
  for (TokenStream* reader : readers_) {
    const int64_t shared =
        std::min({cache_.Shared(reader->prefix->text), MostKept(stream), PromptEnd(*reader) - 1});
    if (shared <= reader->position() || shared - found.position < kMinTokens) continue;
    if (!Fits(shared) || (best != nullptr && shared <= position)) continue;
    best = reader;
    position = shared;
  }
  return best;
}

void PrefixReads::Join(TokenStream& stream, TokenStream& leader, int64_t position) {
  stream.prefix->leader = &leader;
  stream.prefix->awaited = AddCut(leader, position);
  leader.prefix->joined.push_back(&stream);
  stream.prefix->held_back = stream.group_size();
  held_back_[ClassOf(stream)] += stream.prefix->held_back;
  CutNext(leader);
  LendClass(leader);
  metrics_.prefix_joins.Increment();
}

void PrefixReads::Begin(TokenStream& stream, const PrefixCache::Found& found) {
  PrefixRead& read = *stream.prefix;
  Usage& usage = stream.usage;
  scheduler_.BeginAt(stream, std::max(found.position, stream.begin()));
  read.kept = found.kept;
  if (found.kept != nullptr) {
    cache_.Use();
  } else if (MostKept(stream) < kMinTokens) {
    usage.cache_miss = CacheMiss::kTooShort;
  } else if (found.evicted) {
    usage.cache_miss = CacheMiss::kEvicted;
  } else if (found.known >= kMinTokens) {
    usage.cache_miss = CacheMiss::kDiverged;
    usage.diverged_at = static_cast<uint32_t>(found.known - stream.turn().first_position);
  } else {
    usage.cache_miss = CacheMiss::kCold;
  }
  read.text = cache_.Hold(KeyOf(stream), PromptOf(stream));
  std::vector<TokenId>().swap(read.marked);
  if (read.text == nullptr) return;
  read.reads = true;
  readers_.push_back(&stream);
  const int64_t last = PromptEnd(stream) - 1;
  const int64_t interval = std::max(options_.interval, kMinTokens);
  const auto add = [&](int64_t position) {
    if (position - found.position >= kMinTokens && Fits(position)) AddCut(stream, position);
  };
  add(std::min(found.known, MostKept(stream)));
  if (read.context > 0) add(MostKept(stream));
  if (options_.interval > 0) {
    const int64_t first = (found.position / interval + 1) * interval;
    for (int64_t position = first; position <= last; position += interval) add(position);
  }
  CutNext(stream);
}

// Two cuts that are too near to each other become one, at the first of the two. Returns where.
int64_t PrefixReads::AddCut(TokenStream& stream, int64_t position) {
  PrefixRead& read = *stream.prefix;
  const auto near = read.cuts.upper_bound(position - kMinTokens);
  if (near != read.cuts.end() && *near < position + kMinTokens) {
    const int64_t other = *near;
    position = std::min(position, other);
    read.cuts.erase(near);
    for (TokenStream* waiting : read.joined) {
      if (waiting->prefix->awaited == other) waiting->prefix->awaited = position;
    }
  }
  read.cuts.insert(position);
  return position;
}

void PrefixReads::CutNext(TokenStream& stream) {
  const std::set<int64_t>& cuts = stream.prefix->cuts;
  scheduler_.CutAt(stream, cuts.empty() ? Sequence::kNoCut : *cuts.begin());
}

// Those that wait for its states up to `position` are back in their places in the queue.
void PrefixReads::Release(TokenStream& leader, int64_t position) {
  std::vector<TokenStream*> still;
  for (TokenStream* waiting : std::exchange(leader.prefix->joined, {})) {
    if (waiting->prefix->awaited > position) {
      still.push_back(waiting);
      continue;
    }
    waiting->prefix->leader = nullptr;
    held_back_[ClassOf(*waiting)] -= waiting->prefix->held_back;
    scheduler_.Readmit(*waiting);
  }
  leader.prefix->joined = std::move(still);
}

void PrefixReads::LendClass(TokenStream& leader) {
  ServiceClass best = static_cast<const RequestHeader&>(leader).service_class;
  for (const TokenStream* waiting : leader.prefix->joined) {
    best = std::min(best, static_cast<const RequestHeader&>(*waiting).service_class);
  }
  scheduler_.SetClass(leader, best);
}

std::shared_ptr<const KeptState> PrefixReads::Take(TokenStream& stream) {
  if (stream.prefix == nullptr) return nullptr;
  std::shared_ptr<const KeptState> kept = std::move(stream.prefix->kept);
  if (kept == nullptr) {
    const auto miss = static_cast<PrefixMiss>(static_cast<int>(stream.usage.cache_miss) - 1);
    metrics_.prefix_misses(miss).Increment();
    return nullptr;
  }
  const int64_t tokens = stream.position() - stream.turn().first_position;
  stream.usage.cached_tokens = static_cast<uint32_t>(tokens);
  metrics_.prefix_hits.Increment();
  metrics_.prefix_hit_tokens.Increment(static_cast<double>(tokens));
  return kept;
}

// Null: the state cannot be kept, so the cache does not have it.
std::shared_ptr<const KeptState> PrefixReads::Keep(const TokenStream& stream) {
  absl::StatusOr<std::shared_ptr<const KeptState>> kept =
      runner_.KeepSlot(stream.slot(), KeptIn::kDevice);
  if (kept.ok()) return *std::move(kept);
  metrics_.prefix_failures.Increment();
  return nullptr;
}

void PrefixReads::HasRead(TokenStream& stream) {
  if (stream.prefix == nullptr || !ContinuousScheduler::IsAtCut(stream)) return;
  PrefixRead& read = *stream.prefix;
  const int64_t position = stream.position();
  const bool awaited =
      std::any_of(read.joined.begin(), read.joined.end(),
                  [&](const TokenStream* waiting) { return waiting->prefix->awaited <= position; });
  cache_.Keep(read.text, position, awaited, [&] { return Keep(stream); });
  read.cuts.erase(position);
  CutNext(stream);
  for (TokenStream* waiting : read.joined) {
    if (waiting->prefix->awaited <= position) waiting->prefix->has_waited = true;
  }
  Release(stream, position);
  LendClass(stream);
}

void PrefixReads::HasSampled(TokenStream& stream, absl::Span<const SampledToken> tokens) {
  if (stream.prefix == nullptr) return;
  PrefixRead& read = *stream.prefix;
  if (read.text == nullptr) return;
  StopReading(stream);
  for (const SampledToken& token : tokens) {
    if (read.outputs.size() < kMaxOutputs) read.outputs.push_back(token.id);
  }
}

void PrefixReads::StopReading(TokenStream& stream) {
  if (!std::exchange(stream.prefix->reads, false)) return;
  readers_.erase(std::find(readers_.begin(), readers_.end(), &stream));
}

void PrefixReads::HasEnded(TokenStream& stream) {
  if (stream.prefix == nullptr || stream.prefix->text == nullptr) return;
  const PrefixRead& read = *stream.prefix;
  if (read.context > 0) return;  // no other text begins with what follows it
  const int64_t position = stream.position();
  const int64_t consumed = position - stream.prompt_end();
  // A row in flight consumes a token beyond the text; of a long answer, not all ids are known.
  if (stream.flights() > 0 || info_.generated_differ || position < kMinTokens ||
      consumed > static_cast<int64_t>(read.outputs.size()) || !Fits(position)) {
    return;
  }
  const auto outputs = absl::MakeConstSpan(read.outputs).first(static_cast<size_t>(consumed));
  cache_.KeepBehind(read.text, outputs, [&] { return Keep(stream); });
}

void PrefixReads::Remove(TokenStream& stream) {
  if (stream.prefix == nullptr) return;
  PrefixRead& read = *stream.prefix;
  StopReading(stream);
  if (TokenStream* const leader = std::exchange(read.leader, nullptr); leader != nullptr) {
    std::vector<TokenStream*>& joined = leader->prefix->joined;
    joined.erase(std::find(joined.begin(), joined.end(), &stream));
    held_back_[ClassOf(stream)] -= read.held_back;
    LendClass(*leader);
  }
  Release(stream, Sequence::kNoCut);
  if (read.text != nullptr) cache_.LetGo(std::exchange(read.text, nullptr));
}

void PrefixReads::PublishGauges() {
  if (options_.bytes == 0) return;
  int64_t deepest = cache_.deepest();
  for (const TokenStream* reader : readers_) deepest = std::max(deepest, PromptEnd(*reader));
  deepest_.store(deepest, std::memory_order_relaxed);
  metrics_.prefix_states.Set(static_cast<double>(cache_.states()));
  metrics_.prefix_bytes.Set(static_cast<double>(cache_.bytes()));
  const int64_t evictions = cache_.evictions();
  if (evictions == published_evictions_) return;
  metrics_.prefix_evictions.Increment(static_cast<double>(evictions - published_evictions_));
  published_evictions_ = evictions;
}

}  // namespace aft::server
