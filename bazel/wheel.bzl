# SPDX-License-Identifier: Apache-2.0
"""A Python wheel from built files, and wheels unpacked for tests."""

def _wheel_impl(ctx):
    out = ctx.actions.declare_file("%s-%s-%s.whl" % (
        # As the format escapes a dash, which it separates by.
        ctx.attr.distribution.replace("-", "_"),
        ctx.attr.version,
        ctx.attr.tag,
    ))

    # Wheels of earlier versions stay in bazel-bin: this file names the last one.
    name = ctx.actions.declare_file(ctx.label.name + ".name")
    ctx.actions.write(name, out.basename + "\n")
    inputs, args = [], ctx.actions.args()
    args.add("build")
    args.add(out)
    args.add("--name", ctx.attr.distribution)
    args.add("--version", ctx.attr.version)
    args.add("--tag", ctx.attr.tag)
    args.add("--summary", ctx.attr.summary)
    args.add_all(ctx.attr.keywords, before_each = "--keyword")
    args.add_all(ctx.files.readme, before_each = "--readme")
    args.add_all(ctx.files.license, before_each = "--license")
    args.add_all(ctx.files.notices, before_each = "--notices")
    args.add_all(ctx.attr.requires, before_each = "--requires")
    args.add_all([
        "%s:%s" % (extra, requirement)
        for extra, requirements in ctx.attr.extras.items()
        for requirement in requirements
    ], before_each = "--extra")
    args.add_all(ctx.attr.entry_points, before_each = "--entry-point")
    inputs += ctx.files.readme + ctx.files.license + ctx.files.notices
    for target, folder in ctx.attr.sources.items():
        room = target.label.package + "/"
        for f in target.files.to_list():
            if not f.short_path.startswith(room):
                fail("%s is not below %s" % (f.short_path, room))
            path = f.short_path[len(room):]
            if folder:
                path = folder + "/" + path
            args.add("--file", "%s=%s" % (f.path, path))
            inputs.append(f)
    for target, folder in ctx.attr.files_in.items():
        for f in target.files.to_list():
            args.add("--file", "%s=%s/%s" % (f.path, folder, f.basename))
            inputs.append(f)
    ctx.actions.run(
        executable = ctx.executable._tool,
        arguments = [args],
        inputs = inputs,
        outputs = [out],
        mnemonic = "Wheel",
    )
    return [DefaultInfo(
        files = depset([out, name]),
        runfiles = ctx.runfiles(files = [out, name]),
    )]

python_wheel = rule(
    implementation = _wheel_impl,
    doc = "A wheel, and the file TARGET.name with its file name.",
    attrs = {
        "distribution": attr.string(mandatory = True),
        "entry_points": attr.string_list(doc = "group:name=module:function"),
        "extras": attr.string_list_dict(doc = "An extra, and what it requires."),
        "files_in": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Files, and the folder of the wheel they go into.",
        ),
        "keywords": attr.string_list(doc = "For searches in an index."),
        "license": attr.label(allow_single_file = True),
        "notices": attr.label(
            allow_single_file = True,
            doc = "Licences of what is linked into its files.",
        ),
        "readme": attr.label(allow_single_file = True),
        "requires": attr.string_list(),
        "sources": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Files, and the folder of the wheel that their package is.",
        ),
        "summary": attr.string(mandatory = True),
        "tag": attr.string(default = "py3-none-linux_x86_64"),
        "version": attr.string(mandatory = True),
        "_tool": attr.label(
            default = "//python_shim/wheel:build_wheel",
            executable = True,
            cfg = "exec",
        ),
    },
)

def _site_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    wheels = [f for f in ctx.files.wheels if f.extension == "whl"]
    ctx.actions.run(
        executable = ctx.executable._tool,
        arguments = ["unpack", out.path] + [f.path for f in wheels],
        inputs = wheels,
        outputs = [out],
        mnemonic = "UnpackWheel",
    )
    return [DefaultInfo(
        files = depset([out]),
        runfiles = ctx.runfiles(files = [out]),
    )]

unpacked_wheels = rule(
    implementation = _site_impl,
    doc = "A folder as pip would leave it, for PYTHONPATH.",
    attrs = {
        "wheels": attr.label_list(allow_files = [
            ".name",
            ".whl",
        ]),
        "_tool": attr.label(
            default = "//python_shim/wheel:build_wheel",
            executable = True,
            cfg = "exec",
        ),
    },
)
