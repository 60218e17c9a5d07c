#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aft {

inline constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// Parses JSON text and refuses duplicate keys, of which nlohmann::json would keep the last. It also
// refuses a text that is longer than `max_bytes`, and values in more than 2,000 levels, because
// nlohmann::json copies and prints a value by recursion.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text,
                                               size_t max_bytes = kMaxConfigBytes);

// INVALID_ARGUMENT "key: problem".
absl::Status KeyError(absl::string_view key, absl::string_view problem);

// The number as text, or "absent" for 0, which is the default of sizes that may be left out.
std::string OrAbsent(int64_t value);

// The double whose shortest decimal form is that of `value`: 1e-05, not 9.99999974737875e-06.
double ShortestDouble(float value);

// Reads the members of one JSON object into plain values. The first error stays in status(); later
// reads do nothing.
class JsonFields {
 public:
  // `path` is "" for the outermost object, else its key; `known` lists every key it may have.
  // `object` is borrowed.
  JsonFields(const nlohmann::json& object, absl::string_view path,
             const std::vector<absl::string_view>& known);

  const absl::Status& status() const { return status_; }

  // False after an error.
  bool Has(const char* key) const { return status_.ok() && object_.contains(key); }

  // These read a member that must be there.
  void Integer(const char* key, int64_t min, int64_t max, int64_t* out);
  void Number(const char* key, double min, double max, float* out);
  void Bool(const char* key, bool* out);
  void Name(const char* key, const std::vector<absl::string_view>& allowed, std::string* out);
  // Reads a list of `min` to `max` different strings of UTF-8, each of 1 to `max_bytes` bytes.
  void Strings(const char* key, size_t min, size_t max, size_t max_bytes,
               std::vector<std::string>* out);

  // The member itself, for nested objects. It must be there. Null after an error.
  const nlohmann::json* Find(const char* key);

 private:
  void Fail(absl::string_view key, absl::string_view problem) { status_ = KeyError(key, problem); }

  const nlohmann::json& object_;
  const std::string prefix_;
  absl::Status status_;
};

// A value of an enum and its name in JSON.
template <typename E>
struct Named {
  E value;
  const char* name;
};

template <typename E, size_t kCount>
const char* NameOf(const Named<E> (&names)[kCount], E value) {
  for (const Named<E>& named : names) {
    if (named.value == value) return named.name;
  }
  return "unknown";
}

// Reads one of `names`; the member must be there.
template <typename E, size_t kCount>
void ReadEnum(JsonFields& fields, const char* key, const Named<E> (&names)[kCount], E* out) {
  std::vector<absl::string_view> allowed;
  for (const Named<E>& named : names) allowed.emplace_back(named.name);
  std::string name;
  fields.Name(key, allowed, &name);
  for (const Named<E>& named : names) {
    if (name == named.name) *out = named.value;
  }
}

}  // namespace aft
