#include "base/json_walk.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/utf8.h"

namespace aft {
namespace {

using Json = nlohmann::json;

class Walker : public nlohmann::json_sax<Json> {
 public:
  using Take = std::function<absl::Status(const JsonPath&, const Json&)>;

  explicit Walker(const Take& take) : take_(take) {}

  const absl::Status& status() const { return status_; }

  bool null() override { return Value(nullptr); }
  bool boolean(bool value) override { return Value(value); }
  bool number_integer(number_integer_t value) override { return Value(value); }
  bool number_unsigned(number_unsigned_t value) override { return Value(value); }
  bool number_float(number_float_t value, const string_t&) override { return Value(value); }
  bool string(string_t& value) override { return Value(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary data"); }  // cannot occur in JSON text

  bool key(string_t& value) override {
    path_.back() = std::move(value);
    return true;
  }
  bool start_object(size_t) override { return Start(Json::object(), kNoIndex); }
  bool start_array(size_t) override { return Start(Json::array(), 0); }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fail(absl::StrCat("not valid JSON at byte ", position, ": ", Shown(error.what())));
  }

 private:
  static constexpr int64_t kNoIndex = -1;

  bool Fail(absl::string_view reason) {
    status_ = absl::InvalidArgumentError(reason);
    return false;
  }

  // Each value begins with this call: a value in an array gets the next index.
  void Arrive() {
    if (!indices_.empty() && indices_.back() != kNoIndex) {
      path_.back() = absl::StrCat(indices_.back()++);
    }
  }
  bool Value(const Json& value) {
    Arrive();
    status_ = take_(path_, value);
    return status_.ok();
  }
  bool Start(const Json& empty, int64_t index) {
    if (!Value(empty)) return false;
    if (path_.size() == kMaxJsonLevels) {
      return Fail(absl::StrCat("more than ", kMaxJsonLevels, " levels of objects and arrays"));
    }
    path_.emplace_back();
    indices_.push_back(index);
    return true;
  }
  bool End() {
    path_.pop_back();
    indices_.pop_back();
    return true;
  }

  const Take& take_;
  JsonPath path_;                 // one level for each open object or array
  std::vector<int64_t> indices_;  // index of the next value at each level; kNoIndex in objects
  absl::Status status_;
};

}  // namespace

absl::Status WalkJson(absl::string_view text,
                      const std::function<absl::Status(const JsonPath&, const Json&)>& take) {
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("not valid JSON: NUL at byte ", nul));
  }
  Walker walker(take);
  ParseJson(text, walker);
  return walker.status();
}

std::string ShownJson(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  constexpr size_t kMaxShown = 80;
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return absl::StrCat(text.substr(0, kMaxShown), text.size() > kMaxShown ? "..." : "");
}

}  // namespace aft
