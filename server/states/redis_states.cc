#include "server/states/redis_states.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/catching.h"
#include "base/status_macros.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

using Type = RedisReply::Type;

constexpr size_t kLoggedBytes = 200;

// A state expires by Redis' clock. The expiry in the record is checked too, so that a record that
// was put back does not live on. It is by the clock of the server that wrote it, which may differ
// from ours by this much.
constexpr milliseconds kClockSkew = std::chrono::minutes(5);

// The bytes of a reply in addition to its payload.
constexpr size_t kReplyBytes = 4096;

// The first line of kPut. With this line, Redis without memory refuses the script before it begins.
// Without this line, Redis checks its memory only at the first write of a script, and accepts one
// that frees memory, such as the first write of `forget`. The other scripts lack the line, because
// a read-only Redis would refuse them with it even if they write nothing.
constexpr char kCheckFirst[] = "#!lua";

// KEYS: the value, x, n, b (RedisStates). ARGV[1]: an id. In a lexical range, "[" precedes an
// inclusive bound, and "(" an exclusive one; ";" is the character after ":". ZREM comes before
// DECRBY, because Redis without memory refuses DECRBY as the first write of a script.
constexpr char kPrelude[] = R"(
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local function entry(id)
    return redis.call('ZRANGEBYLEX', KEYS[3], '[' .. id .. ':', '(' .. id .. ';')[1]
  end
  local function size(id)
    local found = entry(id)
    return found and tonumber(string.sub(found, #id + 2)) or 0
  end
  local function forget(id)
    local found, bytes = entry(id), size(id)
    if found then
      redis.call('ZREM', KEYS[3], found)
      redis.call('DECRBY', KEYS[4], bytes)
    end
    redis.call('ZREM', KEYS[2], id)
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)) do
    forget(id)  -- what is left counts until the next script: no call makes others wait for long
  end
)";

// ARGV: id, value, ms, bytes, most bytes. Returns -1, or the bytes in use that leave no room.
constexpr char kPut[] = R"(
  local used = math.max(0, tonumber(redis.call('GET', KEYS[4]) or '0') - size(ARGV[1]))
  if used + ARGV[4] > tonumber(ARGV[5]) then return used end
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  forget(ARGV[1])
  redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
  redis.call('ZADD', KEYS[3], 0, ARGV[1] .. ':' .. ARGV[4])
  redis.call('INCRBY', KEYS[4], ARGV[4])
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
  for i = 2, 4 do redis.call('PEXPIREAT', KEYS[i], last) end
  return -1
)";

// ARGV: id. Returns how many there were.
constexpr char kRemove[] = R"(
  forget(ARGV[1])
  return redis.call('DEL', KEYS[1])
)";

// ARGV: id before the first, or "", and how many. Lists states, but no resume points. After a whole
// id the bound needs ";", because the entry of this id has ":" there. A part of an id needs
// nothing: with ";" after it, the bound would pass the ids that continue it with a digit.
constexpr char kList[] = R"(
  local first = ARGV[1] == '' and '-' or '(' .. ARGV[1] .. (#ARGV[1] == 32 and ';' or '')
  return redis.call('ZRANGEBYLEX', KEYS[3], first, '(g', 'LIMIT', 0, ARGV[2])
)";

absl::Status None() { return absl::NotFoundError("no state of this id, or it has expired"); }

absl::Status Nonsense() {
  return absl::UnavailableError("states: Redis gave an unexpected reply (states.redis)");
}

// Whether the key has no value. A value of the wrong type (WRONGTYPE) is one, but not a record.
bool IsNothing(const RedisReply& reply) { return reply.type == Type::kText && reply.text.empty(); }

bool IsError(const RedisReply& reply, absl::string_view code) {
  return reply.type == Type::kError && absl::StartsWith(reply.text, code);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisStates>> RedisStates::Create(const StatesConfig& config,
                                                                 const StateSealer& sealer,
                                                                 StateMetrics& metrics,
                                                                 Executor executor, Clock clock) {
  AFT_RETURN_IF_ERROR(ReadRedisPassword(config.redis).status());
  return absl::WrapUnique(
      new RedisStates(config, sealer, metrics, std::move(executor), std::move(clock)));
}

RedisStates::RedisStates(const StatesConfig& config, const StateSealer& sealer,
                         StateMetrics& metrics, Executor executor, Clock clock)
    : config_(config.redis),
      sealer_(sealer),
      metrics_(metrics),
      executor_(std::move(executor)),
      clock_(std::move(clock)),
      budget_(config, metrics),
      client_(config_, metrics) {}

RedisCommand RedisStates::HeadOf(const std::string& id) const {
  return {"GETRANGE", KeyOf(id), "0", absl::StrCat(kMaxRecordHead - 1)};
}

RedisCommand RedisStates::Script(const char* script, const std::string& client,
                                 const std::string& id, std::vector<std::string> arguments) const {
  const char* const first = script == kPut ? kCheckFirst : "";
  RedisCommand command = {"EVAL", absl::StrCat(first, kPrelude, script), "4", KeyOf(id)};
  for (const char* key : {"x:", "n:", "b:"}) {
    command.push_back(absl::StrCat(config_.prefix, key, client));
  }
  command.push_back(id);
  std::move(arguments.begin(), arguments.end(), std::back_inserter(command));
  return command;
}

absl::Status RedisStates::Check(const RedisClient::Replies& replies) {
  if (!replies.ok()) return replies.status();
  for (const RedisReply& reply : *replies) {
    if (reply.type != Type::kError || IsError(reply, "WRONGTYPE")) continue;
    metrics_.redis_failed(RedisFailure::kRefused).Increment();
    if (const auto left_out = warnings_.Pass(steady_clock::now())) {
      log::Error("states.redis_refused",
                 {{"error", reply.text.substr(0, kLoggedBytes)}, {"left_out", *left_out}});
    }
    if (IsError(reply, "OOM")) {
      return absl::ResourceExhaustedError("states: Redis has no memory left (states.redis)");
    }
    return absl::UnavailableError("states: Redis refuses to serve (states.redis)");
  }
  return absl::OkStatus();
}

absl::Status RedisStates::Unknown() {
  metrics_.refused(StateRefusal::kUnknown).Increment();
  return None();
}

void RedisStates::Refused(const std::string& id, const absl::Status& why) {
  metrics_.refused(StateRefusal::kInvalid).Increment();
  if (const auto left_out = warnings_.Pass(steady_clock::now())) {
    log::Warning("states.skipped", {{"key", KeyOf(StateStore::ShownName(id))},
                                    {"reason", why.message()},
                                    {"left_out", *left_out}});
  }
}

absl::StatusOr<StoredState> RedisStates::Read(const std::string& owner, const std::string& id,
                                              const std::string& head) {
  absl::StatusOr<RedisRecord> record = OpenRecordHead(sealer_, id, owner, head, Now());
  if (!record.ok()) {
    Refused(id, record.status());
    return None();
  }
  if (record->file.ttl + kClockSkew <= milliseconds(0)) return Unknown();
  StoredState stored;
  stored.id = id;
  stored.model = std::move(record->file.model);
  stored.bytes = record->bytes;
  stored.expires = steady_clock::now() + record->file.ttl;
  stored.state = std::move(record->file.state);
  return stored;
}

void RedisStates::Put(StateFolder::File file, StateBudget::Room rest, Found put) {
  const auto copy = std::make_shared<StateBudget::Room>(std::move(rest));
  std::vector<std::string> arguments = {"", absl::StrCat(file.ttl.count()),
                                        absl::StrCat(StateBytes(*file.state)),
                                        absl::StrCat(config_.max_client_bytes)};
  const absl::Status sealed = Catching([&]() -> absl::Status {
    AFT_ASSIGN_OR_RETURN(arguments.front(), SealRecord(sealer_, file, Now()));
    return absl::OkStatus();
  });
  if (!sealed.ok()) return put(sealed);
  StoredState stored;
  stored.id = file.id;
  stored.model = file.model;
  stored.bytes = StateBytes(*file.state);
  stored.expires = steady_clock::now() + file.ttl;
  stored.state = file.state;
  std::vector<RedisCommand> commands(1);
  commands.front() = Script(kPut, file.client, file.id, std::move(arguments));
  client_.Call(file.client, std::move(commands), kReplyBytes,
               [this, stored, copy, put = std::move(put)](const RedisClient::Replies& replies) {
                 *copy = {};
                 absl::Status status = Check(replies);
                 if (status.ok() && replies->front().type != Type::kInteger) status = Nonsense();
                 if (!status.ok()) {
                   metrics_.refused(StateRefusal::kUnwritten).Increment();
                   return put(status);
                 }
                 const int64_t used = replies->front().integer;
                 if (used >= 0) {
                   metrics_.refused(StateRefusal::kFull).Increment();
                   return put(absl::ResourceExhaustedError(absl::StrCat(
                       "states: ", stored.bytes, " bytes more than ", used,
                       " of this client's in Redis exceed states.redis.max_client_bytes=",
                       config_.max_client_bytes)));
                 }
                 metrics_.stored.Increment();
                 put(stored);
               });
}

void RedisStates::Find(const Client& client, const std::string& owner, const std::string& id,
                       Found found) {
  FindUntil(steady_clock::now() + config_.timeout, client, owner, id, std::move(found));
}

void RedisStates::FindUntil(TimePoint deadline, const Client& client, const std::string& owner,
                            const std::string& id, Found found) {
  client_.Call(client.name, {HeadOf(id), {"STRLEN", KeyOf(id)}}, kMaxRecordHead + kReplyBytes,
               [this, deadline, client, owner, id,
                found = std::move(found)](const RedisClient::Replies& replies) {
                 const absl::Status status = Check(replies);
                 if (!status.ok()) return found(status);
                 const RedisReply& head = replies->front();
                 // The value may also expire between the two commands.
                 const int64_t size = replies->back().integer;
                 if (IsNothing(head) || size == 0) return found(Unknown());
                 absl::StatusOr<StoredState> stored = Read(owner, id, head.text);
                 if (!stored.ok()) return found(stored.status());
                 if (size < static_cast<int64_t>(head.text.size())) return found(Nonsense());
                 FindWhole(deadline, client, owner, *stored, size, found);
               });
}

void RedisStates::FindWhole(TimePoint deadline, const Client& client, const std::string& owner,
                            const StoredState& stored, int64_t size, const Found& found) {
  // The size that Redis reports is not authenticated. If the sum overflowed, the reservation would
  // be negative.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  if (size < 0 || size > kMost || stored.bytes < 0 || stored.bytes > kMost) {
    return found(Nonsense());
  }
  // Room for the record, and for the state that is made from it.
  auto room = budget_.Reserve(client, size + stored.bytes);
  if (!room.ok()) return found(room.status());
  const auto held = std::make_shared<StateBudget::Room>(*std::move(room));
  const auto open = [this, owner, stored, held, found](std::string record) {
    StoredState whole = stored;
    const absl::Status status = Catching([&]() -> absl::Status {
      absl::StatusOr<SequenceState> state = OpenRecord(sealer_, stored.id, owner, record);
      if (!state.ok()) {
        Refused(stored.id, state.status());
        return None();
      }
      record = std::string();
      AFT_ASSIGN_OR_RETURN(whole.state, StateBudget::Hold(std::move(*held), *std::move(state)));
      return absl::OkStatus();
    });
    if (!status.ok()) return found(status);
    found(std::move(whole));
  };
  const auto read = [this, deadline, client, owner, id = stored.id, size, open,
                     found](RedisClient::Replies replies) {
    const absl::Status status = Check(replies);
    if (!status.ok()) return found(status);
    const auto record = std::make_shared<std::string>(std::move(replies->front().text));
    if (static_cast<int64_t>(record->size()) == size) {
      return executor_(client, static_cast<size_t>(size),
                       [open, record] { open(std::move(*record)); });
    }
    // Meanwhile another record took its place, or it was removed.
    if (steady_clock::now() >= deadline) return found(Nonsense());
    FindUntil(deadline, client, owner, id, found);
  };
  // Asks for one byte more, to see whether the record ends there.
  client_.Call(client.name, {{"GETRANGE", KeyOf(stored.id), "0", absl::StrCat(size)}},
               static_cast<size_t>(size) + kReplyBytes, read);
}

void RedisStates::Describe(const Client& client, const std::string& owner, const std::string& id,
                           Found found) {
  client_.Call(client.name, {HeadOf(id)}, kMaxRecordHead + kReplyBytes,
               [this, owner, id, found = std::move(found)](const RedisClient::Replies& replies) {
                 const absl::Status status = Check(replies);
                 if (!status.ok()) return found(status);
                 const RedisReply& head = replies->front();
                 if (IsNothing(head)) return found(Unknown());
                 found(Read(owner, id, head.text));
               });
}

void RedisStates::List(const Client& client, const std::string& owner, const std::string& after,
                       size_t most, Listed listed) {
  ListUntil(steady_clock::now() + config_.timeout, client.name, owner, after, most,
            std::move(listed));
}

void RedisStates::ListUntil(TimePoint deadline, const std::string& client, const std::string& owner,
                            const std::string& after, size_t most, Listed listed) {
  const auto describe = [this, deadline, client, owner, after, most,
                         listed = std::move(listed)](const RedisClient::Replies& replies) {
    const absl::Status status = Check(replies);
    if (!status.ok()) return listed(status);
    if (replies->front().type != Type::kArray) return listed(Nonsense());
    std::vector<std::string> ids;
    std::vector<RedisCommand> heads;
    for (const RedisReply& entry : replies->front().elements) {
      ids.push_back(entry.text.substr(0, entry.text.find(':')));
      heads.push_back(HeadOf(ids.back()));
    }
    if (ids.empty()) return listed(std::vector<StoredState>());
    // More ids than were asked for, or an order in which the next page would be the same.
    if (ids.size() > most || ids.back() <= after) return listed(Nonsense());
    const auto read = [this, deadline, client, owner, ids, most,
                       listed](const RedisClient::Replies& found) {
      const absl::Status got = Check(found);
      if (!got.ok()) return listed(got);
      std::vector<StoredState> states;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (IsNothing((*found)[i])) continue;  // it expired meanwhile
        absl::StatusOr<StoredState> stored = Read(owner, ids[i], (*found)[i].text);
        if (stored.ok()) states.push_back(*std::move(stored));
      }
      // An empty list would say that there are no more.
      if (!states.empty()) return listed(std::move(states));
      if (steady_clock::now() >= deadline) return listed(Nonsense());
      ListUntil(deadline, client, owner, ids.back(), most, listed);
    };
    client_.Call(client, std::move(heads), ids.size() * (kMaxRecordHead + kReplyBytes), read,
                 deadline);
  };
  client_.Call(client, {Script(kList, owner, after, {absl::StrCat(most)})},
               kReplyBytes + most * 2 * StateStore::kIdBytes * 2, describe, deadline);
}

void RedisStates::Remove(const Client& client, const std::string& owner, const std::string& id,
                         Done done) {
  const auto remove = [this, client = client.name, owner, id,
                       done = std::move(done)](const RedisClient::Replies& replies) {
    const absl::Status status = Check(replies);
    if (!status.ok()) return done(status);
    if (IsNothing(replies->front())) return done(None());
    // Where clients are not known, another client may have stored the state.
    const absl::StatusOr<RedisRecord> record =
        OpenRecordHead(sealer_, id, owner, replies->front().text, Now());
    if (!record.ok()) {
      Refused(id, record.status());
      return done(None());
    }
    client_.Call(client, {Script(kRemove, record->file.client, id, {})}, kReplyBytes,
                 [this, done](const RedisClient::Replies& removed) {
                   const absl::Status checked = Check(removed);
                   const bool done_so = checked.ok() && removed->front().type == Type::kInteger;
                   done(checked.ok() && !done_so ? Nonsense() : checked);
                 });
  };
  client_.Call(client.name, {HeadOf(id)}, kMaxRecordHead + kReplyBytes, remove);
}

int64_t RedisStates::Now() const {
  return std::chrono::duration_cast<milliseconds>(clock_().time_since_epoch()).count();
}

}  // namespace aft::server
