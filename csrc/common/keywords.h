// Structs out of keyword arguments, by their tables (fields.h). A chunk has 20 of them and is made once for
// every chunk of a sweep, so a name is hashed once, when the module is loaded.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/bind.h"
#include "common/fields.h"

namespace robustdml {

// The keyword arguments of one call, on the way into what reads them.
struct Keywords {
    const std::string& function;
    const py::kwargs& given;
    std::size_t used = 0;

    template <class V>
    void read(const py::object& name, bool optional, V& value) {
        using Given = typename FromPython<V>::Given;
        const py::handle argument = PyDict_GetItemWithError(given.ptr(), name.ptr());
        if (!argument) {
            if (PyErr_Occurred()) throw py::error_already_set();
            if (optional) return;
            throw py::type_error(function + "() is missing the keyword argument '" +
                                 std::string(py::str(name)) + "'");
        }
        py::detail::make_caster<Given> caster;
        if (!caster.load(argument, true))
            throw py::type_error(function + "() can't take " + std::string(py::repr(argument)) +
                                 " as its argument '" + std::string(py::str(name)) + "'");
        value = FromPython<V>::convert(py::detail::cast_op<Given>(caster));
        ++used;
    }
};

inline py::object interned(const char* name) {
    PyObject* text = PyUnicode_InternFromString(name);
    if (!text) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(text);
}

// Reads one value by one name.
template <class V>
struct KeywordReader {
    py::object name;

    V read(Keywords& keywords) const {
        V value{};
        keywords.read(name, false, value);
        return value;
    }
    bool knows(py::handle key) const { return name.equal(key); }
    std::string help() const { return ", " + std::string(py::str(name)); }
};

// Reads a struct by the names of its table.
template <class Struct>
struct StructReader {
    static constexpr std::size_t kCount = std::tuple_size_v<decltype(Struct::fields())>;
    static_assert(kCount == member_count<Struct>(), "fields() leaves out a member");
    std::array<py::object, kCount> names =
        interned_names(Struct::fields(), std::make_index_sequence<kCount>());

    Struct read(Keywords& keywords) const {
        Struct value{};
        read_fields(keywords, value, std::make_index_sequence<kCount>());
        return value;
    }
    bool knows(py::handle key) const {
        for (const py::object& name : names)
            if (name.equal(key)) return true;
        return false;
    }
    std::string help() const {
        std::string text;
        const auto add = [&](const auto& field) {
            text += std::string(", ") + field.name + (field.optional ? "=0" : "");
        };
        std::apply([&](const auto&... field) { (add(field), ...); }, Struct::fields());
        return text;
    }

  private:
    template <class Fields, std::size_t... i>
    static std::array<py::object, kCount> interned_names(const Fields& fields, std::index_sequence<i...>) {
        return {interned(std::get<i>(fields).name)...};
    }
    template <std::size_t... i>
    void read_fields(Keywords& keywords, Struct& value, std::index_sequence<i...>) const {
        constexpr auto fields = Struct::fields();
        (keywords.read(names[i], std::get<i>(fields).optional, value.*std::get<i>(fields).member), ...);
    }
};

// All that the readers ask for; an argument that none of them knows is an error.
template <class... Readers>
auto read_keywords(const std::string& function, const py::kwargs& given, const Readers&... readers) {
    Keywords keywords{function, given};
    std::tuple values{readers.read(keywords)...};
    if (keywords.used == given.size()) return values;
    for (const auto& [key, _] : given)
        if (!(readers.knows(key) || ...))
            throw py::type_error(function + "() got an unexpected keyword argument '" +
                                 std::string(py::str(key)) + "'");
    return values;
}

// A struct with a table as m.<name>(*, <its fields>...).
template <class Struct>
void define_struct(py::module_& m, const std::string& name) {
    const StructReader<Struct> reader;
    const std::string help = name + "(*" + reader.help() + ")";
    py::class_<Struct>(m, name.c_str(), py::module_local(), help.c_str())
        .def(py::init([name, reader](const py::kwargs& given) {
            return std::get<0>(read_keywords(name, given, reader));
        }));
}

template <class V>
auto reader_of(const char* const*& name) {
    if constexpr (std::is_class_v<V>)
        return StructReader<V>();
    else
        return KeywordReader<V>{interned(*name++)};
}

// `function` as m.<name>(chunk, *, <fields of its structs>..., <names of its other parameters>...).
template <class Result, class Chunk, class... Parameters, class... Names>
void define_epilogue(py::module_& m, const std::string& name, Result (*function)(const Chunk&, Parameters...),
                     Names... names) {
    const std::array<const char*, sizeof...(Names)> all_names{names...};
    const char* const* next = all_names.data();
    std::tuple readers{reader_of<std::decay_t<Parameters>>(next)...};
    const std::string help = std::apply(
        [&](const auto&... reader) { return (name + "(chunk, *" + ... + reader.help()) + ")"; }, readers);
    m.def(
        name.c_str(),
        [name, function, readers](const Chunk& chunk, const py::kwargs& given) {
            const auto values = std::apply(
                [&](const auto&... reader) { return read_keywords(name, given, reader...); }, readers);
            py::gil_scoped_release release;
            return std::apply([&](const auto&... value) { return function(chunk, value...); }, values);
        },
        py::arg("chunk"), help.c_str());
}

}  // namespace robustdml
