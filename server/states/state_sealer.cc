#include "server/states/state_sealer.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/config/text_proto.h"  // ReadConfigFile

namespace aft::server {
namespace {

constexpr absl::string_view kMagic = "AFTSEAL1";
constexpr size_t kKeyIdBytes = 8;
constexpr size_t kHmacBytes = 32;
constexpr size_t kBodyAt = kMagic.size() + kKeyIdBytes + kHmacBytes;
constexpr size_t kUseBytes = sizeof(TokenId) + sizeof(uint32_t);

static_assert(sizeof(TokenUse) == kUseBytes && std::is_trivially_copyable_v<TokenUse>,
              "written as it is");

std::string Hmac(absl::string_view key, absl::string_view bytes) {
  std::string hmac(kHmacBytes, '\0');
  unsigned int size = 0;
  AFT_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                 reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                 reinterpret_cast<unsigned char*>(hmac.data()), &size) != nullptr &&
            size == kHmacBytes);
  return hmac;
}

// A key of its own for each context, so that none opens what another one sealed.
std::string SealOf(const std::string& secret, absl::string_view context, absl::string_view body) {
  return Hmac(context.empty() ? secret : Hmac(secret, context), body);
}

template <typename Number>
void Write(Number value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// False: there are not so many bytes left.
template <typename Number>
bool Read(absl::string_view& bytes, Number& value) {
  if (bytes.size() < sizeof(value)) return false;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return true;
}

bool ReadState(absl::string_view bytes, SequenceState& state) {
  uint64_t uses = 0;
  if (!Read(bytes, state.model) || !Read(bytes, state.tokens) || !Read(bytes, state.outputs) ||
      !Read(bytes, state.history) || !Read(bytes, state.pending) || !Read(bytes, uses) ||
      uses > bytes.size() / kUseBytes) {
    return false;
  }
  state.had.resize(static_cast<size_t>(uses));
  if (uses > 0) std::memcpy(state.had.data(), bytes.data(), state.had.size() * kUseBytes);
  state.snapshot = std::string(bytes.substr(state.had.size() * kUseBytes));
  return true;
}

absl::Status Refused(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("not a state that can be used here: ", why));
}

}  // namespace

absl::StatusOr<StateSealer> StateSealer::Create(const std::vector<std::string>& key_files) {
  StateSealer sealer;
  for (const std::string& file : key_files) {
    AFT_ASSIGN_OR_RETURN(std::string secret, ReadConfigFile(file));
    if (secret.size() < kMinKeyBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          file, ": a key of ", secret.size(), " bytes; it must have at least ", kMinKeyBytes));
    }
    sealer.Add(std::move(secret));
  }
  if (key_files.empty()) {
    std::string secret(kMinKeyBytes, '\0');
    AFT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()),
                         static_cast<int>(secret.size())) == 1);
    sealer.Add(std::move(secret));
  }
  return sealer;
}

void StateSealer::Add(std::string secret) {
  std::string id = Hmac(secret, "id of this key").substr(0, kKeyIdBytes);
  keys_.push_back({std::move(secret), std::move(id)});
}

int64_t StateSealer::SealedBytes(const SequenceState& state) {
  constexpr size_t kNumbers = 5 * sizeof(uint64_t) + sizeof(TokenId);
  return static_cast<int64_t>(kBodyAt + kNumbers + state.had.size() * kUseBytes +
                              state.snapshot.size());
}

std::string StateSealer::Seal(const SequenceState& state, absl::string_view context) const {
  std::string sealed;
  sealed.reserve(static_cast<size_t>(SealedBytes(state)));
  sealed.append(kMagic.data(), kMagic.size());
  sealed += keys_.front().id;
  sealed.append(kHmacBytes, '\0');
  Write(state.model, sealed);
  Write(state.tokens, sealed);
  Write(state.outputs, sealed);
  Write(state.history, sealed);
  Write(state.pending, sealed);
  Write(uint64_t{state.had.size()}, sealed);
  sealed.append(reinterpret_cast<const char*>(state.had.data()), state.had.size() * kUseBytes);
  sealed += state.snapshot;
  const std::string hmac =
      SealOf(keys_.front().secret, context, absl::string_view(sealed).substr(kBodyAt));
  std::copy(hmac.begin(), hmac.end(), sealed.begin() + (kBodyAt - kHmacBytes));
  return sealed;
}

absl::StatusOr<SequenceState> StateSealer::Open(absl::string_view sealed,
                                                absl::string_view context) const {
  if (sealed.size() < kBodyAt || sealed.substr(0, kMagic.size()) != kMagic) {
    return Refused("these bytes are none");
  }
  const absl::string_view id = sealed.substr(kMagic.size(), kKeyIdBytes);
  const auto key = std::find_if(keys_.begin(), keys_.end(),
                                [id](const Key& candidate) { return candidate.id == id; });
  if (key == keys_.end()) {
    return Refused(
        "it was sealed with a key that this server has not (servers share states by "
        "states.key_files; without them each process has a key of its own)");
  }
  const absl::string_view body = sealed.substr(kBodyAt);
  const std::string hmac = SealOf(key->secret, context, body);
  if (CRYPTO_memcmp(hmac.data(), sealed.data() + (kBodyAt - kHmacBytes), kHmacBytes) != 0) {
    return Refused("it is damaged or forged");
  }
  SequenceState state;
  if (!ReadState(body, state)) return Refused("it is damaged");
  return state;
}

}  // namespace aft::server
