#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Makes files in the format of torch.save, byte by byte, so that tests can also make files that
// torch.save would not write.
namespace aft {

// The bytes of a little-endian number.
template <typename T>
std::string BytesOf(T number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(T));
}

// A zip archive whose records, names and contents, are stored as they are. Checksums are 0. With
// `wide`, all sizes and offsets are in the fields of zip64.
inline std::string ZipOf(const std::vector<std::pair<std::string, std::string>>& records,
                         bool wide = false) {
  const auto narrow = [wide](size_t number) {
    return BytesOf(wide ? ~uint32_t{0} : static_cast<uint32_t>(number));
  };
  std::string file;
  std::string directory;
  for (const auto& [name, content] : records) {
    const size_t bytes = content.size();
    const std::string extra = wide ? "\1" + std::string("\0\x18\0", 3) + BytesOf<uint64_t>(bytes) +
                                         BytesOf<uint64_t>(bytes) + BytesOf<uint64_t>(file.size())
                                   : "";
    const std::string sizes = narrow(bytes) + narrow(bytes) +
                              BytesOf(static_cast<uint16_t>(name.size())) +
                              BytesOf(static_cast<uint16_t>(extra.size()));
    directory += "PK\1\2" + std::string(16, '\0') + sizes + std::string(10, '\0') +
                 narrow(file.size()) + name + extra;
    file += "PK\3\4" + std::string(14, '\0') + sizes + name + extra + content;
  }
  const size_t begin = file.size();
  file += directory;
  const uint64_t count = records.size();
  if (wide) {
    const size_t end = file.size();
    file += "PK\6\6" + BytesOf<uint64_t>(44) + std::string(12, '\0') + BytesOf(count) +
            BytesOf(count) + BytesOf<uint64_t>(directory.size()) + BytesOf<uint64_t>(begin);
    file += "PK\6\7" + BytesOf<uint32_t>(0) + BytesOf<uint64_t>(end) + BytesOf<uint32_t>(1);
  }
  const std::string short_count = BytesOf(wide ? uint16_t{0xFFFF} : static_cast<uint16_t>(count));
  return file + "PK\5\6" + std::string(4, '\0') + short_count + short_count +
         narrow(directory.size()) + narrow(begin) + std::string(2, '\0');
}

// Instructions of a pickle. Each function returns those that leave one value on the stack.
namespace pickled {

inline std::string Text(const std::string& text) {
  return "X" + BytesOf(static_cast<uint32_t>(text.size())) + text;
}
inline std::string Int(int64_t number) { return "\x8A\x08" + BytesOf(number); }
inline std::string Tuple(const std::vector<std::string>& items) {
  std::string code = "(";
  for (const std::string& item : items) code += item;
  return code + "t";
}
inline std::string Sizes(const std::vector<int64_t>& sizes) {
  std::vector<std::string> items;
  for (const int64_t size : sizes) items.push_back(Int(size));
  return Tuple(items);
}
inline std::string Dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string code = "}(";
  for (const auto& [name, value] : items) code += Text(name) + value;
  return code + "u";
}
inline std::string Name(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string Call(const std::string& function, const std::string& arguments) {
  return function + arguments + "R";
}
// `type` is "Float" for torch.FloatStorage.
inline std::string Storage(const std::string& type, const std::string& key, int64_t numbers) {
  return Tuple({Text("storage"), Name("torch", type + "Storage"), Text(key), Text("cpu"),
                Int(numbers)}) +
         "Q";
}
inline std::string Tensor(const std::string& storage, int64_t offset,
                          const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  return Call(Name("torch._utils", "_rebuild_tensor_v2"),
              Tuple({storage, Int(offset), Sizes(shape), Sizes(strides), "\x89",
                     Call(Name("collections", "OrderedDict"), ")")}));
}
inline std::string Program(const std::string& value) { return "\x80\x02" + value + "."; }

}  // namespace pickled
}  // namespace aft
