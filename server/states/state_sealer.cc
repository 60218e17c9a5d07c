#include "server/states/state_sealer.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/config/text_proto.h"  // ReadConfigFile

namespace aft::server {
namespace {

// These begin a sealed state without a note and with one. Both have the same length.
constexpr absl::string_view kSealMagic = "AFTSEAL2";
constexpr absl::string_view kNoteMagic = "AFTSEAL3";
constexpr size_t kKeyIdBytes = 8;
constexpr size_t kHeadBytes =
    kSealMagic.size() + kKeyIdBytes;  // associated data: under the tag too
constexpr size_t kTagBytes = 16;
constexpr size_t kBodyAt = kHeadBytes + kTagBytes;
constexpr size_t kUseBytes = sizeof(TokenId) + sizeof(uint32_t);

static_assert(sizeof(TokenUse) == kUseBytes && std::is_trivially_copyable_v<TokenUse>,
              "written as it is");

std::string Hmac(const EVP_MD* hash, absl::string_view key, absl::string_view bytes) {
  std::string hmac(static_cast<size_t>(EVP_MD_get_size(hash)), '\0');
  // Fails only if a few hundred bytes cannot be allocated; then a status could not be made either.
  AFT_CHECK(HMAC(hash, key.data(), static_cast<int>(key.size()),
                 reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                 reinterpret_cast<unsigned char*>(hmac.data()), nullptr) != nullptr);
  return hmac;
}

// AES-256-SIV (RFC 5297) of `in` to `out`, which has the same size and may be the same place. It
// also authenticates `head`. Sealing writes `tag`; opening returns false if the tag differs.
bool RunSiv(bool seal, const std::string& key, absl::string_view head, absl::string_view in,
            char* out, char* tag) {
  using Cipher = std::unique_ptr<EVP_CIPHER, decltype(&EVP_CIPHER_free)>;
  using Context = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;
  static const Cipher& siv =
      *new Cipher(EVP_CIPHER_fetch(nullptr, "AES-256-SIV", nullptr), EVP_CIPHER_free);
  const Context context(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  const auto bytes = [](const char* at) { return reinterpret_cast<const unsigned char*>(at); };
  int written = 0;
  return siv != nullptr && context != nullptr &&
         EVP_CipherInit_ex2(context.get(), siv.get(), bytes(key.data()), nullptr, seal ? 1 : 0,
                            nullptr) == 1 &&
         (seal || EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag) == 1) &&
         EVP_CipherUpdate(context.get(), nullptr, &written, bytes(head.data()),
                          static_cast<int>(head.size())) == 1 &&
         EVP_CipherUpdate(context.get(), reinterpret_cast<unsigned char*>(out), &written,
                          bytes(in.data()), static_cast<int>(in.size())) == 1 &&
         EVP_CipherFinal_ex(context.get(), reinterpret_cast<unsigned char*>(out), &written) == 1 &&
         (!seal || EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag) == 1);
}

// 64 bytes, as AES-256-SIV needs. Each context has its own key, so that it opens nothing that was
// sealed in another one.
std::string SivKey(const std::string& secret, absl::string_view context) {
  return Hmac(EVP_sha512(), secret, absl::StrCat("seal of a state\n", context));
}

template <typename Number>
void Write(Number value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// False: too few bytes are left.
template <typename Number>
bool Read(absl::string_view& bytes, Number& value) {
  if (bytes.size() < sizeof(value)) return false;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return true;
}

// Moves the snapshot out of `opened`.
bool ReadState(bool has_note, std::string& opened, SequenceState& state) {
  absl::string_view bytes = opened;
  uint64_t uses = 0;
  uint64_t note = 0;
  if (!Read(bytes, state.model) || !Read(bytes, state.tokens) || !Read(bytes, state.outputs) ||
      !Read(bytes, state.history) || !Read(bytes, state.pending) || !Read(bytes, uses) ||
      (has_note && !Read(bytes, note)) || note > bytes.size() ||
      uses > (bytes.size() - note) / kUseBytes) {
    return false;
  }
  state.note = std::string(bytes.substr(0, note));
  bytes.remove_prefix(note);
  state.had.resize(static_cast<size_t>(uses));
  if (uses > 0) std::memcpy(state.had.data(), bytes.data(), state.had.size() * kUseBytes);
  opened.erase(0, opened.size() - bytes.size() + state.had.size() * kUseBytes);
  state.snapshot = std::move(opened);
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
    if (secret.size() < kMinKeyBytes || secret.size() > kMaxKeyBytes) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": a key of ", secret.size(),
                                                     " bytes; it must have at least ", kMinKeyBytes,
                                                     " and at most ", kMaxKeyBytes));
    }
    sealer.Add(std::move(secret));
  }
  if (key_files.empty()) {
    std::string secret(kMinKeyBytes, '\0');
    if (RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()),
                   static_cast<int>(secret.size())) != 1) {
      return absl::UnavailableError("states: the system gives no random numbers for a key");
    }
    sealer.Add(std::move(secret));
  }
  return sealer;
}

void StateSealer::Add(std::string secret) {
  std::string id = Hmac(EVP_sha256(), secret, "id of this key").substr(0, kKeyIdBytes);
  keys_.push_back({std::move(secret), std::move(id)});
}

int64_t StateSealer::SealedBytes(const SequenceState& state) {
  constexpr size_t kNumbers = 5 * sizeof(uint64_t) + sizeof(TokenId);
  const size_t note = state.note.empty() ? 0 : sizeof(uint64_t) + state.note.size();
  return static_cast<int64_t>(kBodyAt + kNumbers + note + state.had.size() * kUseBytes +
                              state.snapshot.size());
}

absl::StatusOr<std::string> StateSealer::Seal(const SequenceState& state,
                                              absl::string_view context) const {
  std::string sealed;
  AFT_RETURN_IF_ERROR(Append(state, context, sealed));
  return sealed;
}

absl::Status StateSealer::Append(const SequenceState& state, absl::string_view context,
                                 std::string& bytes) const {
  if (SealedBytes(state) > std::numeric_limits<int>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a state of ", StateBytes(state), " bytes is too large to be sealed"));
  }
  const size_t begin = bytes.size();
  bytes.reserve(begin + static_cast<size_t>(SealedBytes(state)));
  const absl::string_view magic = state.note.empty() ? kSealMagic : kNoteMagic;
  bytes.append(magic.data(), magic.size());
  bytes += keys_.front().id;
  bytes.append(kTagBytes, '\0');
  Write(state.model, bytes);
  Write(state.tokens, bytes);
  Write(state.outputs, bytes);
  Write(state.history, bytes);
  Write(state.pending, bytes);
  Write(uint64_t{state.had.size()}, bytes);
  if (!state.note.empty()) {
    Write(uint64_t{state.note.size()}, bytes);
    bytes += state.note;
  }
  bytes.append(reinterpret_cast<const char*>(state.had.data()), state.had.size() * kUseBytes);
  bytes += state.snapshot;
  const absl::string_view sealed = absl::string_view(bytes).substr(begin);
  char* const at = bytes.data() + begin;
  if (!RunSiv(/*seal=*/true, SivKey(keys_.front().secret, context), sealed.substr(0, kHeadBytes),
              sealed.substr(kBodyAt), at + kBodyAt, at + kHeadBytes)) {
    return absl::InternalError("a state could not be encrypted");
  }
  return absl::OkStatus();
}

absl::StatusOr<SequenceState> StateSealer::Open(absl::string_view sealed,
                                                absl::string_view context) const {
  const absl::string_view magic = sealed.substr(0, kSealMagic.size());
  const bool known = magic == kSealMagic || magic == kNoteMagic;
  if (!known && absl::StartsWith(magic, kSealMagic.substr(0, kSealMagic.size() - 1))) {
    return Refused(absl::StrCat("its format ", absl::CHexEscape(magic),
                                " is of another version of the server"));
  }
  if (sealed.size() <= kBodyAt || !known) {
    return Refused("these bytes are not a sealed state");
  }
  const absl::string_view id = sealed.substr(kSealMagic.size(), kKeyIdBytes);
  const auto key = std::find_if(keys_.begin(), keys_.end(),
                                [id](const Key& candidate) { return candidate.id == id; });
  if (key == keys_.end()) {
    return Refused(
        "it was sealed with a key that this server does not have (servers share states by "
        "states.key_files; without them each process has a key of its own)");
  }
  if (sealed.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return Refused("it is too large");
  }
  std::string tag(sealed.substr(kHeadBytes, kTagBytes));
  std::string opened(sealed.size() - kBodyAt, '\0');
  if (!RunSiv(/*seal=*/false, SivKey(key->secret, context), sealed.substr(0, kHeadBytes),
              sealed.substr(kBodyAt), opened.data(), tag.data())) {
    return Refused("it is damaged or forged");
  }
  SequenceState state;
  if (!ReadState(magic == kNoteMagic, opened, state)) return Refused("it is damaged");
  return state;
}

}  // namespace aft::server
