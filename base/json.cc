#include "base/json.h"

#include <cstddef>
#include <utility>
#include <vector>

namespace aft {
namespace {

using Json = nlohmann::json;

// Makes a value of the parts of a text.
class JsonBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit JsonBuilder(Json& root) : root_(root) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // cannot occur in text
  bool start_object(size_t /*elements*/) override { return Open(Json::object()); }
  bool start_array(size_t /*elements*/) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& key) override {
    member_ = &(*open_.back())[key];
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  // The place of the next value. A parent does not move while one of its values is open.
  Json& Place() {
    if (open_.empty()) return root_;
    if (!open_.back()->is_array()) return *member_;
    return open_.back()->emplace_back();
  }
  bool Add(Json value) {
    Place() = std::move(value);
    return true;
  }
  bool Open(Json empty) {
    Json& place = Place();
    place = std::move(empty);
    open_.push_back(&place);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  std::vector<Json*> open_;  // the objects and arrays around the next value
  Json* member_ = nullptr;   // the value of the last key
};

template <typename J>
std::string Dump(const J& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, J::error_handler_t::replace);
}

}  // namespace

bool ParseJson(absl::string_view text, nlohmann::json& value) {
  JsonBuilder builder(value);
  if (ParseJson(text, builder)) return true;
  value = nullptr;
  return false;
}

bool ParseJson(absl::string_view text, nlohmann::json_sax<nlohmann::json>& take) {
  return Json::sax_parse(text.data(), text.data() + text.size(), &take);
}

std::string DumpJson(const nlohmann::json& value, int indent) { return Dump(value, indent); }
std::string DumpJson(const nlohmann::ordered_json& value, int indent) {
  return Dump(value, indent);
}

}  // namespace aft
